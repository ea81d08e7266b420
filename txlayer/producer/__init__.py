"""Transactional producers: threads, asyncio and pipelined, over one protocol of steps."""
