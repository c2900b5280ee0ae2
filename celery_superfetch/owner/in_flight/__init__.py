"""What this process holds, from the claim of a job to its ack or its way back.

One lock, never held over the network but for the round trip it orders; no heart, no channel.
"""
