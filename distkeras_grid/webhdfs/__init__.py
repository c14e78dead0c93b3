"""HDFS over HTTP, for machines without Java and Hadoop: upload, download, list, measure, delete.

Read in this order: addresses, checksums, answers, tries, refusals, network, connection, items,
files, local_files, hdfs_files, transfer_status, transfers, pool, upload, download, listing,
usage, directories.
"""
