"""A real HDFS and YARN on this machine: daemons of their own, no Docker, no root.

`Sandbox` in `cluster` starts and stops them; `class_path` finds their classes, `configuration`
writes what they read, `daemons` runs them, `readiness` asks whether they work.
"""
