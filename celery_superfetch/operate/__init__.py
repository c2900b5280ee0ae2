"""Operate: what there is to see, whether it is well, and what to do about it, as plain values.

Commands, probes, metrics and pages all ask here. It prints nothing, and never claims a job.
"""
