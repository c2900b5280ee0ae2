"""When to claim, when to block, and from which queue lists: one fetch loop for each channel.

Never decodes a message: that is for the channel and its consumers.
"""
