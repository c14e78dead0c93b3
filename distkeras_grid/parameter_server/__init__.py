"""The parameter server: a process that folds the workers' commits, on the driver's host.

Read in this order: `messages`, `frames`, `connection` (the protocol, without a socket), `auth`,
`center` (the arithmetic), `membership`, `ledger`, `gradient_log`, `center_snapshots` and
`server_core` (what the server decides), `transports`,
`service` (the process: threads, and a lock around the core), `process` (the driver's side, which
starts it), `client`.
"""
