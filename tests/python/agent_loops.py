"""Agent frameworks against a running server: loops that end, answers that fit a nested model.

    pip install openai-agents instructor pydantic
    vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000 \
        --enable-auto-tool-choice --tool-call-parser hermes
    python3 tests/python/agent_loops.py http://127.0.0.1:8000
"""

import asyncio
import enum
import sys
from typing import Annotated, Literal, Optional, Union

import agents
import instructor
import openai
from pydantic import BaseModel, Field

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
MODEL = "tiny-llama"
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
asked = []


class Colour(str, enum.Enum):
    RED = "red"
    GREEN = "green"


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float = Field(gt=0, le=100)


class Square(BaseModel):
    kind: Literal["square"]
    side: int = Field(ge=1, multiple_of=2)


class Picture(BaseModel):
    title: str = Field(min_length=3, max_length=40)
    colour: Colour
    shapes: list[Annotated[Union[Circle, Square], Field(discriminator="kind")]] = Field(
        min_length=1, max_length=3
    )
    code: str = Field(pattern=r"^[A-Z]{2}-\d{4}$")
    inner: Optional["Picture"] = None


def structured():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        wrapped = instructor.from_openai(client, mode=mode)
        for seed in range(10):
            picture = wrapped.chat.completions.create(
                model=MODEL,
                response_model=Picture,
                max_retries=0,
                max_tokens=900,
                seed=seed,
                messages=[{"role": "user", "content": "Draw something."}],
            )
            assert isinstance(picture, Picture) and picture.shapes, picture


@agents.function_tool
def clock(zone: Literal["UTC", "CET"]) -> str:
    """The time in a zone."""
    asked.append(zone)
    return "12:00"


async def looped(model):
    """The tool is forced once; then the framework lets the model choose."""
    agent = agents.Agent(
        name="clerk",
        instructions="Answer.",
        model=model,
        tools=[clock],
        model_settings=agents.ModelSettings(tool_choice="required", max_tokens=300),
    )
    before = len(asked)
    try:
        result = await agents.Runner.run(agent, "What time is it?", max_turns=25)
    except agents.MaxTurnsExceeded:
        raise AssertionError("the loop does not end") from None
    assert len(asked) > before, "the tool was never called"
    assert isinstance(result.final_output, str), result
    streamed = agents.Runner.run_streamed(agent, "What time is it?", max_turns=25)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "run_item_stream_event" in kinds and "raw_response_event" in kinds, set(kinds)
    assert isinstance(streamed.final_output, str), streamed


structured()
agents.set_tracing_disabled(True)
later = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key="none", max_retries=0)
asyncio.run(looped(agents.OpenAIChatCompletionsModel(MODEL, later)))
asyncio.run(looped(agents.OpenAIResponsesModel(MODEL, later)))
print("agent_loops: all as expected")
