"""The Python SDK: a typed client of the HTTP API. Imports core only.

from phalanx.client import connect
client = connect()
job = client.submit({"name": "hello", "entrypoint": "python hello.py"}, None, key="made-once-by-you")
client.wait(job.id)
"""

from phalanx.client.address import connect, home_folder
from phalanx.client.api import Client

__all__ = ["Client", "connect", "home_folder"]
