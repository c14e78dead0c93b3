"""Labels, groups, splits and near-duplicates."""
