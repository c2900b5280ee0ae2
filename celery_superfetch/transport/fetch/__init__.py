"""When to claim, when to block, and from which lists: one fetch for each channel.

Never touches a message: what a job says is for the channel and its consumers.
"""
