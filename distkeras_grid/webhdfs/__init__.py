"""HDFS over HTTP, for machines without Java and Hadoop: upload, download, list, measure, delete.

Read in this order: addresses, checksums, failures, network, connection, transfer_plan, transfers,
operations.
"""
