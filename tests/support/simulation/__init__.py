"""Rented machines that exist only in a file: whole pipelines run on them in seconds.

The fleet's file stands for the machines: it outlives every client, as job directories do. Each
client is a real process of the real command line (`driver.py`) whose hosts are these.
"""

from __future__ import annotations
