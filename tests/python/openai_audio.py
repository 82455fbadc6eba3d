"""Speech to text with the official Python SDK (`pip install openai`).

    vllm-sim serve demo --task transcription --port 8000
    python3 tests/python/openai_audio.py http://127.0.0.1:8000
"""

import io
import sys
import wave

import openai

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id


def recording(seconds):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(int(seconds * 32_000)))
    out.seek(0)
    out.name = "recording.wav"
    return out


def plain():
    answer = client.audio.transcriptions.create(file=recording(2.5), model=MODEL)
    assert answer.text and answer.usage.type == "duration" and answer.usage.seconds == 3, answer
    again = client.audio.transcriptions.create(file=recording(2.5), model=MODEL, response_format="text")
    assert answer.text in str(again)


def verbose():
    answer = client.audio.transcriptions.create(
        file=recording(40), model=MODEL, language="de", prompt="Dear all,", temperature=0.2,
        response_format="verbose_json", timestamp_granularities=["segment"])
    assert answer.duration == 40 and answer.language == "de", answer
    assert answer.segments[-1].end > 38 and answer.segments[0].start == 0
    assert all(s.temperature == 0.2 and s.tokens for s in answer.segments)


def streamed():
    whole = client.audio.transcriptions.create(file=recording(8), model=MODEL)
    parts = list(client.audio.transcriptions.create(
        file=recording(8), model=MODEL, stream=True, extra_body={"stream_include_usage": True}))
    text = "".join(p.choices[0]["delta"]["content"] for p in parts if p.choices)
    assert text == whole.text, (text, whole.text)
    assert parts[-1].usage is not None


def translated():
    assert client.audio.translations.create(file=recording(3), model=MODEL).text


def refused():
    for ask, status in ((dict(response_format="srt"), 400), (dict(language="xx"), 400), (dict(model="none"), 404)):
        try:
            client.audio.transcriptions.create(**{"file": recording(1), "model": MODEL, **ask})
        except openai.APIStatusError as error:
            assert error.status_code == status, error
        else:
            raise AssertionError(f"{ask} was taken")


for step in (plain, verbose, streamed, translated, refused):
    step()
    print("ok", step.__name__)
