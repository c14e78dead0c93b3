"""The parameter server: one process on the driver's host that folds the workers' commits.

Read in this order: `messages`, `frames`, `connection` (the protocol, without a socket), `auth`,
`center` (the arithmetic), `state`, `replay`, `snapshots` and `mind` (what the server decides),
`coordinator` (one lock around the mind), `transports`, `service` (the process), `process` (which
starts it), `client`.
"""
