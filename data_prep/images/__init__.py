"""From bytes on a disk to the pixels of one plane."""
