"""When to claim, when to block, and from which queue lists: one fetch loop for each channel.

No message is decoded here: that is for the channel and its consumers.
"""
