"""A LangGraph agent whose model is scripted: it calls a tool, and answers from the tool's result.

    pip install langgraph langchain-openai
    vllm-sim --model demo --port 8000 --enable-auto-tool-choice --tool-call-parser hermes
    python3 tests/python/langgraph_agent.py http://127.0.0.1:8000
"""

import json
import sys
import urllib.request

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
REPLIES = [
    {"when": {"contains": "weather"}, "call": {"name": "get_weather", "arguments": {"city": "Paris"}}},
    {"when": {"matches": r"^\d+ degrees"}, "say": "It is warm in Paris."},
]

request = urllib.request.Request(f"{BASE}/admin/replies", json.dumps(REPLIES).encode(), method="POST")
urllib.request.urlopen(request, timeout=10).close()


@tool
def get_weather(city: str) -> str:
    """Says how warm it is in a city."""
    asked.append(city)
    return "21 degrees"


asked: list[str] = []
model = ChatOpenAI(model="demo", base_url=f"{BASE}/v1", api_key="none", max_retries=0)
model = model.bind_tools([get_weather])
graph = StateGraph(MessagesState)
graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([get_weather]))
graph.add_edge(START, "agent")
graph.add_conditional_edges("agent", tools_condition)
graph.add_edge("tools", "agent")

for how in ("invoke", "stream"):
    asked.clear()
    question = {"messages": [("user", "How is the weather in Paris?")]}
    app = graph.compile()
    if how == "invoke":
        messages = app.invoke(question)["messages"]
    else:
        messages = list(app.stream(question, stream_mode="values"))[-1]["messages"]
    kinds = [message.type for message in messages]
    assert kinds == ["human", "ai", "tool", "ai"], kinds
    assert asked == ["Paris"], asked
    assert messages[-1].content == "It is warm in Paris.", messages[-1]
    print(how, "->", messages[-1].content)
