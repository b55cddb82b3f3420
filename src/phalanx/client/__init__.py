"""The Python SDK: a typed client of the HTTP API. Imports core only.

from phalanx.client import connect
client = connect()
job = client.submit({"name": "hello", "entrypoint": "python hello.py"}, None, key="made-once-by-you")
client.wait(job.id)

On an event loop: `async with connect_async() as client: await client.job("hello-1")`; every method is the same, to be awaited.
"""

from phalanx.client.address import connect, connect_async, home_folder
from phalanx.client.api import Client

__all__ = ["Client", "connect", "connect_async", "home_folder"]
