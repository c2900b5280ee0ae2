"""How a server is talked to: connections that follow it, scripts by digest, what it can do.

Never names a key: what is kept there is the room above's.
"""
