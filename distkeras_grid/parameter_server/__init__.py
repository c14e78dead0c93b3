"""The parameter server: a process that folds the workers' commits, on the driver's host.

Read in this order: `messages`, `frames`, `connection` (the protocol, without a socket), `auth`,
`center` (the arithmetic), `membership`, `ledger`, `gradient_log`, `center_snapshots` and
`server_core` (what the server decides), `coordinator` (one lock around the core), `transports`,
`service` (the process), `process` (the driver's side, which starts it), `client`.
"""
