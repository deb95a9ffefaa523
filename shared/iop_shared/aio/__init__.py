"""The asyncio rim that both daemons share: tasks, the loop, the link's connection, stores and HTTP servers."""
