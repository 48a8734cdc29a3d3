"""Asks with the client of openapi-python-client."""

import os
import pkgutil
from importlib import import_module

import answerd_client
from answerd_client import Client
from answerd_client.api.answers import answer
from answerd_client.api.runs import get_run
from answerd_client.models import Answer, Question, Status, StatusStatus, ToolResultEvent  # noqa: F401

for module in pkgutil.walk_packages(answerd_client.__path__, "answerd_client."):
    import_module(module.name)  # every part can be imported

with Client(base_url=os.environ["ANSWERD_URL"], timeout=60) as client:
    answered = answer.sync(client=client, body=Question(question="What is 12.5 * 8?"))
    assert isinstance(answered, Answer), answered
    run = get_run.sync(answered.run_id, client=client)
    assert isinstance(run, Status) and run.status == StatusStatus.COMPLETED, run
    print(answered.metadata.tool_names, answered.answer.splitlines()[0])
