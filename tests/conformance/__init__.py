"""Exports and shards in other people's tools. `table.py` lists the cells; docs/compatibility.md prints them."""
