"""Asks with the Python client of openapi-generator."""

import os
import pkgutil
from importlib import import_module

import openapi_client
from openapi_client import AnswersApi, ApiClient, Configuration, Question, RunsApi

for module in pkgutil.walk_packages(openapi_client.__path__, "openapi_client."):
    import_module(module.name)  # every part can be imported

with ApiClient(Configuration(host=os.environ["ANSWERD_URL"])) as client:
    answer = AnswersApi(client).answer(Question(question="What is 12.5 * 8?"))
    run = RunsApi(client).get_run(answer.run_id)
    assert run.status == "completed", run
    print(answer.metadata.tool_names, answer.answer.splitlines()[0])
