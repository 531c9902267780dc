"""`sampler=vllm_server` against a small server that answers as vLLM does, with a model of its own.

1. It draws what the model draws, from the weights that were pushed, and says so of every token.
2. Several servers share the prompts.
3. Whatever is wrong with a server is one line that names it, and leaves no file behind.
4. The command that starts a server has the run's model and lengths.
"""

import contextlib
import itertools
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conftest import command, experiment, sample
from safetensors.torch import load_file

from rec_experiments.common.batch import SampleKey
from rec_experiments.common.errors import UserError
from rec_experiments.common.rng import TRAIN
from rec_experiments.samplers import vllm_server
from rec_experiments.samplers.vllm import engine_arguments
from rec_experiments.samplers.vllm_server import VllmServer, chunks, described

SETTING = (
    "dataset=arithmetic", "sampler=vllm_server", "sampler.dtype=float32", "model.init_std=0.15",
)  # fmt: skip
PROMPTS = [[5, 6, 7], [8, 9], [10]]
DRAWS = [[SampleKey(0, TRAIN, 0, group, k) for k in range(3)] for group in range(3)]


class Fake(BaseHTTPRequestHandler):
    """Greedy, at any temperature; a class for each server, with its own state and faults."""

    model, seen, version, says, deaf = None, (), "default", {}, False

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cls = type(self)
        cls.seen = (*cls.seen, (self.path, body))
        answer = None
        match self.path:
            case "/collective_rpc" if body["method"] == "described":
                answer = {"results": [cls.says]}
            case "/collective_rpc" if not cls.deaf:
                files = sorted(Path(body["args"][0]).iterdir())
                for file in files:
                    cls.model.load_state_dict(load_file(file), strict=False)
            case "/update_weight_version":
                cls.version = body["new_version"]
            case "/inference/v1/generate":
                answer = {"choices": [self.text(**body)]}
        text = json.dumps(answer or {"results": None}).encode()
        self.send_response(500 if cls.says is None else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def text(self, token_ids, sampling_params):
        tokens, logps = [*token_ids], []
        for _ in range(sampling_params["max_tokens"]):
            with torch.no_grad():
                logp_V = self.model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(logp_V.argmax()))
            logps.append(float(logp_V.max()))
        spans = [{"version": self.version, "start": 0, "end": len(logps)}]
        content = [{"logprob": -9999.0 if math.isnan(logp) else logp} for logp in logps]
        own = tokens[len(token_ids) :]
        return {"token_ids": own, "weight_versions": spans, "logprobs": {"content": content}}

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(settings):
    """A fake server with the model of an experiment, and its url."""
    model, task = settings.model.model().eval(), settings.dataset
    longest = task.max_prompt_tokens + task.max_response_tokens
    says = described(model.config, engine_arguments(settings.sampler, model, longest))
    handler = type("Own", (Fake,), {"model": model, "says": says})
    server = ThreadingHTTPServer(("localhost", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def built(settings, tmp_path, *urls):
    values = {name: getattr(settings.sampler, name) for name in VllmServer.field_names()}
    own = VllmServer(**{**values, "url": list(urls), "folder": str(tmp_path), "timeout": 20})
    model = settings.model.model()
    return model, own.build(model, [1], settings.dataset.max_prompt_tokens, 4)


@pytest.fixture(scope="module")
def settings():
    return experiment(*SETTING, "dataset.max_response_tokens=4")


@pytest.fixture
def one(settings, tmp_path):
    with served(settings) as (fake, url):
        model, sampler = built(settings, tmp_path, url)
        yield fake, model, sampler
    assert [*tmp_path.iterdir()] == []


def moved(model, factor=1.5):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model.state_dict()


def test_it_draws_from_the_pushed_weights(one):
    fake, model, sampler = one
    sampler.load(moved(model))
    drawn = sample(sampler, PROMPTS, DRAWS, 1.0)
    for prompt, group in zip(PROMPTS, drawn, strict=True):
        for response in group:
            with torch.no_grad():
                row = torch.tensor([prompt + list(response.tokens)])
                logp_TV = model(row).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            assert response.logp == pytest.approx(logp_TV.max(-1).values.tolist(), abs=1e-5)
    asked = [body for path, body in fake.seen if path.endswith("generate")][1:]  # after the canary
    assert len({body["sampling_params"]["seed"] for body in asked}) == 9


def test_several_policies_write_a_response(one):
    """Each continues what those before it have written."""
    fake, model, sampler = one
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    second = {name: weight.clone() for name, weight in moved(model).items()}
    one_each = [named[:1] for named in DRAWS]
    policies = [(0, first), (3, second)]
    mixed = sampler.sample_in_flight(PROMPTS, one_each, 1.0, policies, False).tokens()
    sampler.load(first)
    alone = sampler.sample(PROMPTS, one_each, 1.0).tokens()
    assert [row[:3] for row in mixed] == [row[:3] for row in alone]
    model.load_state_dict(second)
    for prompt, row in zip(PROMPTS, mixed, strict=True):
        with torch.no_grad():
            assert int(model(torch.tensor([prompt + row[:3]])).logits[0, -1].argmax()) == row[3]
    seeds = [b["sampling_params"]["seed"] for p, b in fake.seen if p.endswith("generate")]
    assert len(set(seeds)) >= 6


def test_servers_share_the_prompts(settings, tmp_path):
    with served(settings) as (fake, url), served(settings) as (other, its_url):
        _, sampler = built(settings, tmp_path, url, its_url)
        sampler.load(moved(sampler.model))
        sample(sampler, PROMPTS, DRAWS, 1.0)
        asked = [
            [body["token_ids"] for path, body in each.seen if path.endswith("generate")][1:]
            for each in (fake, other)
        ]
    assert sorted(map(tuple, asked[0])) == [(5, 6, 7)] * 3 + [(10,)] * 3
    assert asked[1] == [[8, 9]] * 3


def test_a_server_that_drops_a_push_is_noticed(one):
    fake, model, sampler = one
    sampler.load(model.state_dict())
    fake.deaf = True
    with pytest.raises(UserError, match=r"differ from the trainer's by .* start it again"):
        sampler.load(moved(model, 3.0))


def test_weights_of_another_run_are_noticed(one):
    fake, model, sampler = one
    sampler.load(model.state_dict())
    fake.version = "another-1"
    with pytest.raises(UserError, match=r"from the weights another-1, not from .*-1, which"):
        sample(sampler, PROMPTS, DRAWS, 1.0)


def test_a_diverged_policy_is_reported(one):
    _, model, sampler = one
    sampler.load(moved(model, float("nan")))
    with pytest.raises(FloatingPointError, match="diverged"):
        sample(sampler, PROMPTS, DRAWS, 1.0)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({"vocab_size": 7}, "started with vocab_size=7, this run needs"),
        ({"model_type": "llama"}, "started with model_type=llama, this run needs qwen2"),
        ({"logprobs_mode": "raw_logprobs"}, "logprobs_mode=raw_logprobs"),
        (None, "answered 500 to collective_rpc"),
    ],
)
def test_a_server_for_something_else_is_refused(says, message, settings, tmp_path):
    with served(settings) as (fake, url):
        fake.says = says and fake.says | says
        with pytest.raises(UserError, match=message) as caught:
            built(settings, tmp_path, url)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_gone_ends_a_run_in_one_line(tmp_path):
    done = command(*SETTING, "sampler.url=http://localhost:1", "run_dir=run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: sampler.url=http://localhost:1: the ser")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["localhost:8000", "http://localhost", "https://a:1", "http://a:x"])
def test_an_address_without_host_and_port_is_refused(url):
    with pytest.raises(UserError, match=r"must be http://HOST:PORT"):
        experiment(*SETTING, f"sampler.url='{url}'")


def test_chunks_lose_nothing_and_hold_no_more_than_they_may():
    weights = [(str(n), torch.zeros(n % 5)) for n in range(30)]
    parts = list(chunks(iter(weights), 20))
    assert [name for part in parts for name in part] == [name for name, _ in weights]
    assert all(len(p) == 1 or sum(w.nbytes for w in p.values()) <= 20 for p in parts)
    assert len(parts) < 20


def test_the_command_that_starts_a_server(settings):
    words, environment = settings.sampler.command(settings.model.model(), 80)
    pairs = dict(itertools.pairwise(words))
    assert words[1:3] == ["-m", vllm_server.ENTRY]
    assert (pairs["--host"], pairs["--port"]) == ("localhost", "8000")
    assert pairs["--max-model-len"] == "80"
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert json.loads((Path(pairs["--model"]) / "config.json").read_text())["vocab_size"] == 258
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
