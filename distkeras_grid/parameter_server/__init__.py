"""The parameter server: one process on the driver's host that folds the workers' commits.

Read in this order: `messages`, `frames`, `connection` (the protocol, without a socket), `auth`,
`state` and `events` (the mind), `fold` (the arithmetic), `coordinator` (one lock around both),
`transports`, `service` (the process), `process` (which starts it), `client`.
"""
