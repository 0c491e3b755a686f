"""The gateway: the only process of a server that other machines reach.

The SuperLink has no accounts: whoever reaches its control API can start runs. It listens on
loopback, and the gateway forwards only ``POST /v1/fleet/NAME`` of registered nodes to it.
"""
