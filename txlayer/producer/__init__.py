"""Transactional producers for threads, for asyncio and pipelined; all run the same protocol steps."""
