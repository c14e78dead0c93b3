"""The parameter server: a process that folds the workers' commits, on the driver's host.

Read in this order: `messages`, `frames`, `connection` (the protocol, without a socket), `auth`,
`center` (the arithmetic), `state`, `replay`, `snapshots` and `core` (what the server decides),
`coordinator` (one lock around the core), `transports`, `service` (the process), `child` (which
starts it), `process` (the driver's side), `client`. Then `vocabulary`, `wire`, `gate` and
`entering` (messages with arrays, which divided models use).
"""
