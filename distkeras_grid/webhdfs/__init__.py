"""HDFS over HTTP, for machines without Java and Hadoop: upload, download, list.

Read in this order: addresses, checksums, refusals, connection, plan, pool, upload, download.
"""
