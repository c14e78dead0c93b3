"""HDFS over HTTP, for machines without Java and Hadoop: upload, download, list, measure, delete.

Read in this order: sites, addresses, checksums, failures, network, connection, transfer_plan,
local_files, transfers, operations.
"""
