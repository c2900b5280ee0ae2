"""The jobs in flight of this process, from the claim of each to its ack or requeue.

One lock guards them: never held over a round trip but those that report their states to the server.
"""
