"""Wrong, huge and unusual requests that `sglang_compare.py` sends to both servers (`--hostile`).

A case is its group, the method and path, and the body: JSON, raw bytes or none.
"""

HELLO = [{"role": "user", "content": "Hello there"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
PARAMS = {"max_new_tokens": 2}
deep = "x"
for _ in range(50):
    deep = [deep]
deepd = {}
for _ in range(100):
    deepd = {"a": deepd}


def post(path, body):
    return "POST", path, body


def native(**more):
    return post("/generate", {"text": "Hello there", "sampling_params": PARAMS} | more)


def params(**more):
    return native(sampling_params=PARAMS | more)


def ids(value):
    return post("/generate", {"input_ids": value, "sampling_params": PARAMS})


def chat(**more):
    return post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2} | more)


def completion(**more):
    return post("/v1/completions", {"prompt": "Hello there", "max_tokens": 2} | more)


def response(**more):
    return post("/v1/responses", {"model": "tiny-llama", "input": "Hello there", "max_output_tokens": 4} | more)


def message(**more):
    return post("/v1/messages", {"model": "tiny-llama", "messages": HELLO, "max_tokens": 2} | more)


def score(**more):
    body = {"query": "q", "items": ["a", "b"], "label_token_ids": [5, 6], "model": "tiny-llama"}
    return post("/v1/score", body | more)


def native_cases():
    return [
        native(text=None), native(text=True), native(text=1.5), native(text=[1]), native(text=[None]), native(text=["a", None]),
        native(text=[["a"]]), native(text=[]), native(text=""), native(text=[""]), native(text=["a",""]),
        ids([1.0]),
        ids([1.5]), ids(["1"]), ids([True]),
        ids([-1]), ids([2**31]), ids([2**63]), ids([2**64]), ids([10**40]),
        ids([[]]), ids([[5],[]]), ids([[5],6]), ids(5), ids("5"), ids([5,[6]]), ids([None]), ids([[5],["x"]]),ids([]),
        ids([99999]), ids([4095]),ids([4096]),
        native(sampling_params={}), native(sampling_params=None), native(sampling_params=[]), native(sampling_params="x"),
        native(sampling_params=[PARAMS,PARAMS]), native(text=["a","b"], sampling_params=[PARAMS]),
        native(text=["a","b"], sampling_params=[PARAMS,PARAMS,PARAMS]), native(text=["a","b"], sampling_params=[PARAMS, {}]),
        native(text=["a","b"], sampling_params=[PARAMS, None]), native(text=["a","b"], sampling_params=[{"temperature":-1}, PARAMS]),
        native(text=["a","b"], sampling_params=PARAMS|{"n":2}), native(text=["a"], sampling_params=PARAMS|{"n":2}),
        native(text=["a","b"], sampling_params=[PARAMS|{"n":2},PARAMS]),
        native(text=["a","b"], sampling_params=[PARAMS|{"n":2},PARAMS|{"n":2}]),
        params(n=0), params(n=-1), params(n=2.0), params(n=1.5), params(n=True), params(n="2"), params(n=None), params(n=10**30),
        params(n=2**63),
        params(max_new_tokens=None, stop="day"), params(max_new_tokens=1.0), params(max_new_tokens="3"), params(max_new_tokens=2**31),
        params(max_new_tokens=2**63), params(max_new_tokens=10**30), params(max_new_tokens=True),
        params(temperature=None), params(temperature=0), params(temperature=1e-7), params(temperature=1e308), params(temperature=10**400),
        params(temperature=True), params(temperature="0.5"), params(temperature=-0.0),
        params(top_p=None), params(top_p=0), params(top_p=1), params(top_p=1.0000001), params(top_p=-1), params(top_p="x"),
        params(top_k=0), params(top_k=-1), params(top_k=-2), params(top_k=2**30), params(top_k=2**31), params(top_k=2**63),
        params(top_k=2**64), params(top_k=1.0), params(top_k=None),
        params(min_p=-1), params(min_p=1), params(min_p=1.1), params(frequency_penalty=2.1), params(frequency_penalty=-2),
        params(presence_penalty=-3), params(repetition_penalty=0), params(repetition_penalty=2), params(repetition_penalty=2.1),
        params(repetition_penalty=-1),
        params(min_new_tokens=-1), params(min_new_tokens=2), params(min_new_tokens=3), params(min_new_tokens="x"),
        params(min_new_tokens=10**30), params(max_new_tokens=0, min_new_tokens=1), params(max_new_tokens=None, min_new_tokens=3, stop="day"),
        params(stop=[]), params(stop=""), params(stop=[""]), params(stop=None), params(stop=[None]), params(stop=["a", 5]),
        params(stop={"a":1}), params(stop=["a"]*100), params(stop="x"*5000), params(stop=["On"]), params(stop="O"),
        params(stop_token_ids=[]), params(stop_token_ids=[None]), params(stop_token_ids=[-1]), params(stop_token_ids=[46]),
        params(stop_token_ids="x"), params(stop_token_ids=[2**63]), params(stop_token_ids=[1.5]), params(stop_token_ids=5),
        params(logit_bias={}), params(logit_bias={"5":1}), params(logit_bias={"x":1}), params(logit_bias={"5":"x"}),
        params(logit_bias={"-1":1}), params(logit_bias={"5":1000}), params(logit_bias=[]), params(logit_bias={" 5 ":1}),
        params(logit_bias={"5":None}), params(logit_bias={"4090":1}), params(logit_bias={"5.0":1}), params(logit_bias={"":1}),
        params(json_schema="{"), params(json_schema="{}"), params(json_schema=5), params(json_schema=""), params(regex="("),
        params(regex=""), params(regex=5), params(ebnf="x"), params(ebnf=""), params(structural_tag="{"), params(structural_tag=""),
        params(regex="a", ebnf="b"),
        params(ignore_eos=None), params(ignore_eos="true"), params(skip_special_tokens=False), params(spaces_between_special_tokens=False),
        params(no_stop_trim=True, stop="n"), params(custom_params={}), params(custom_params=[]), params(custom_params=5),
        params(custom_params={"a": deepd}), params(stream_interval=0), params(stream_interval=-1), params(stream_interval=2),
        params(stream_interval="x"), params(stream_interval=2**70), params(sampling_seed=5), params(sampling_seed=-1),
        params(sampling_seed=2**70), params(sampling_seed=2**63), params(sampling_seed="x"),
        params(unknown=1), params(**{"":1}), params(choice=["a"]), params(choice=[]), params(beam_width=1), params(beam_width=0),
        params(stop_regex="a"), params(stop_regex=[]), params(stop_regex=""), params(stop_regex=5),params(watermark={}),
        params(watermark=None), params(thinking_budget=5),
    ]


def chat_cases():
    return [
        chat(messages=None), chat(messages={}), chat(messages=[None]), chat(messages=["x"]), chat(messages=[{"role":"user"}]),
        chat(messages=[{"role":"user","content":None}]), chat(messages=[{"role":"user","content":5}]),
        chat(messages=[{"role":"user","content":[]}]), chat(messages=[{"role":"user","content":""}]),
        chat(messages=[{"role":"nobody","content":"x"}]), chat(messages=[{"role":"USER","content":"x"}]), chat(messages=[{"content":"x"}]),
        chat(messages=[{"role":"assistant","content":None}]), chat(messages=[{"role":"tool","content":"x"}]),
        chat(messages=[{"role":"user","content":[{"type":"text"}]}]), chat(messages=[{"role":"user","content":[{"type":"nope"}]}]),
        chat(messages=[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]),
        chat(messages=[{"role":"user","content":[5]}]), chat(messages=[{"role":"user","content":deep}]),
        chat(messages=[{"role":"user","content":deepd}]),
        chat(messages=[{"role":"assistant","content":"x","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"y"}]),
        chat(messages=[{"role":"assistant","content":"x","tool_calls":"no"}]),
        chat(messages=[{"role":"assistant","content":"x","tool_calls":[{}]}]),
        chat(messages=[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{bad"}}]}]),
        chat(model=None), chat(model=5), chat(model=""), chat(model="a:b"), chat(model="tiny-llama:none"), chat(model=":x"),
        chat(model="x:"), chat(lora_path="none"), chat(lora_path=["none"]), chat(lora_path=5), chat(lora_path=""),
        chat(n=0), chat(n=-1), chat(n=None), chat(n="2"), chat(n=2.0), chat(n=1.5), chat(n=True), chat(n=10**30), chat(max_tokens=0),
        chat(max_tokens=-1), chat(max_tokens=None), chat(max_tokens="5"), chat(max_tokens=2.0), chat(max_tokens=10**18),
        chat(max_tokens=10**30), chat(max_tokens=4000), chat(max_tokens=2047), chat(max_tokens=2048), chat(max_completion_tokens=0),
        chat(max_completion_tokens=-5), chat(min_tokens=5), chat(min_tokens=-1), chat(min_tokens="x"),
        chat(temperature=-1), chat(temperature="1"), chat(temperature=None), chat(temperature=10**30), chat(top_p=0), chat(top_p=2),
        chat(top_k=0), chat(top_k=-5), chat(top_k=1.0), chat(min_p=3), chat(frequency_penalty=5), chat(frequency_penalty=None),
        chat(presence_penalty="x"), chat(repetition_penalty=0), chat(repetition_penalty=-1),
        chat(logprobs=True, top_logprobs=0), chat(logprobs=True, top_logprobs=-1), chat(logprobs=True, top_logprobs=21),
        chat(logprobs=True, top_logprobs=100), chat(logprobs=None), chat(logprobs=5), chat(logprobs="yes"), chat(top_logprobs=3),
        chat(logprobs=True, top_logprobs="x"), chat(logprobs=True, n=2, stream=True),
        chat(stop=[]), chat(stop=""), chat(stop=5), chat(stop=["a"]*40), chat(stop={"a":1}), chat(stop_token_ids=[None]),
        chat(stop_token_ids=[99999]), chat(stop_token_ids="x"), chat(logit_bias={"x":1}), chat(logit_bias={"5":"x"}),
        chat(logit_bias={"5":200}), chat(logit_bias=5), chat(logit_bias={"99999":1}), chat(seed=None), chat(seed=-1), chat(seed=2**70),
        chat(seed="x"), chat(seed=1.5), chat(user=5), chat(user=None),
        chat(stream="yes"), chat(stream=1), chat(stream=2), chat(stream=None), chat(stream_options={"include_usage":True}),
        chat(stream=True, stream_options={}), chat(stream=True, stream_options={"include_usage":"x"}), chat(stream=True, stream_options=5),
        chat(stream=True,max_tokens=0), chat(stream=True, temperature=-1), chat(stream=True,n=0), chat(stream=True, logit_bias={"x":1}),
        chat(stream=True, messages=[]), chat(stream=True, lora_path="none"), chat(stream=True, max_tokens=10**9),
        chat(tools=[]), chat(tools={}), chat(tools=[5]), chat(tools=[{}]), chat(tools=[{"type":"function"}]),
        chat(tools=[{"type":"x","function":{"name":"f"}}]), chat(tools=[{"type":"function","function":{"name":""}}]),
        chat(tools=[{"type":"function","function":{"name":"f","parameters":5}}]),
        chat(tools=[{"type":"function","function":{"name":"f","parameters":{"type":"nope"}}}]),
        chat(tools=[{"type":"function","function":{"name":"f","strict":"x"}}]), chat(tools=TOOLS+TOOLS),
        chat(tools=TOOLS, tool_choice="none"), chat(tools=TOOLS, tool_choice="x"), chat(tools=TOOLS, tool_choice=5),
        chat(tools=TOOLS, tool_choice={}), chat(tools=TOOLS, tool_choice={"type":"function","function":{}}),
        chat(tools=TOOLS, tool_choice={"type":"function","function":{"name":"g"}}), chat(tool_choice="auto"), chat(tool_choice="required"),
        chat(tool_choice={"type":"function","function":{"name":"f"}}), chat(tools=TOOLS,parallel_tool_calls="x"),
        chat(response_format=None), chat(response_format={}), chat(response_format={"type":"x"}), chat(response_format={"type":"text"}),
        chat(response_format={"type":"json_object"}), chat(response_format={"type":"json_schema"}),
        chat(response_format={"type":"json_schema","json_schema":{}}),
        chat(response_format={"type":"json_schema","json_schema":{"name":"x","schema":{}}}),
        chat(response_format={"type":"json_schema","json_schema":{"name":"x","schema":{"type":"nope"}}}),
        chat(response_format={"type":"json_schema","json_schema":{"name":"x","schema":5}}), chat(response_format={"type":"structural_tag"}),
        chat(response_format=5), chat(regex="("), chat(ebnf="x"), chat(regex="a", ebnf="b"), chat(regex=5),
        chat(reasoning_effort="x"), chat(reasoning_effort=5), chat(reasoning_effort=0.5), chat(reasoning_effort="low"),
        chat(chat_template_kwargs=5), chat(chat_template_kwargs={"chat_template":"x"}), chat(chat_template_kwargs={"enable_thinking":False}),
        chat(continue_final_message=True), chat(continue_final_message=True, messages=HELLO+[{"role":"assistant","content":"I"}]),
        chat(rid=5), chat(rid=["a"]), chat(rid=""), chat(rid=["a","b"]), chat(rid=["a"],n=2), chat(priority="x"), chat(priority=2**70),
        chat(cache_salt=5), chat(cache_salt=["a"]), chat(routed_dp_rank=1), chat(routed_dp_rank="x"), chat(data_parallel_rank=-1),
        chat(return_hidden_states=True), chat(return_hidden_states="x"), chat(return_token_ids=True, stream=True),
        chat(separate_reasoning="x"), chat(stop_regex="a"), chat(stop_regex=5), chat(unknown=1), chat(**{"messages":HELLO*200}),
        chat(messages=[{"role":"user","content":"é😀\u0000"}]), chat(messages=[{"role":"user","content":"x"*20000}]),
    ]


def other_cases():
    return [
        completion(prompt=None), completion(prompt=5), completion(prompt=[]), completion(prompt=[[]]), completion(prompt=[""]),
        completion(prompt=["a",5]), completion(prompt=[5,"a"]), completion(prompt=[[5],6]), completion(prompt=[1.5]),
        completion(prompt=[-1]), completion(prompt=[True]), completion(prompt=[2**64]), completion(prompt={}), completion(prompt=deep),
        completion(prompt=["a"]*3, n=2), completion(prompt=[[5],[6]], logprobs=1), completion(prompt=[5,6], echo=True),
        completion(prompt=[5,6], echo=True, logprobs=1), completion(prompt=["a","b"], echo=True, n=2),
        completion(logprobs=-1), completion(logprobs=6), completion(logprobs=True), completion(logprobs="x"),
        completion(logprobs=0, stream=True), completion(max_tokens=0), completion(max_tokens=0, echo=True), completion(max_tokens=-1),
        completion(max_tokens=None), completion(max_tokens=10**9), completion(max_tokens=10**30), completion(n=0), completion(n=None),
        completion(best_of=2), completion(best_of=0), completion(suffix="x"), completion(user=5), completion(stop=5),
        completion(stop=["a"]*40), completion(seed=2**70), completion(logit_bias={"x":1}), completion(logit_bias={"99999":1}),
        completion(rid=["a"]), completion(rid=["a","a"], prompt=["x","y"]), completion(rid="m", prompt=["x","y"]), completion(model=None),
        completion(model="other"), completion(model="tiny-llama:x"), completion(lora_path=["x"]),
        completion(response_format={"type":"json_object"}), completion(response_format={"type":"x"}), completion(json_schema="{"),
        completion(regex="("), completion(json_schema=5), completion(stream=True, prompt=[]), completion(stream=True, echo=True),
        completion(stream=True, n=2, prompt=["a","b"]), completion(stream_options=5),
        completion(stream=True, stream_options={"include_usage":True}, prompt=["a","b"]), completion(temperature=-1),
        completion(return_hidden_states=True), completion(unknown=1), completion(stop_regex="a"), completion(prompt="x"*20000),
        completion(prompt=[5]*3000), completion(prompt=["a"]*3, max_tokens=1, stop="x"), completion(return_token_ids=True),
        completion(return_token_ids=True, stream=True), completion(return_prompt_token_ids=True, prompt=["a","b"]),
        response(input=None), response(input=[]), response(input=[5]), response(input=[{}]), response(input=[{"role":"user"}]),
        response(input=[{"role":"user","content":None}]), response(input=[{"role":"user","content":5}]),
        response(input=[{"role":"user","content":[{"type":"input_text","text":"x"}]}]),
        response(input=[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]), response(input=[{"type":"nope"}]),
        response(input=[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}]),
        response(input=""), response(input={}), response(max_output_tokens=0), response(max_output_tokens=-1), response(max_output_tokens=1),
        response(max_output_tokens=10**9), response(max_output_tokens="x"), response(max_output_tokens=10**30), response(temperature=-1),
        response(temperature="x"), response(top_p=0), response(model="other"), response(model=5), response(tools=[{}]),
        response(tools=[{"type":"function","name":"f"}]), response(tools=[{"type":"function"}]), response(tools=[{"type":"web_search"}]),
        response(tools=5), response(tool_choice="x"), response(tool_choice="required"),
        response(tool_choice={"type":"function","name":"g"}, tools=[{"type":"function","name":"f"}]),
        response(text={"format":{"type":"json_schema","name":"x","schema":{"type":"object"}}}), response(text={"format":{"type":"x"}}),
        response(text=5), response(reasoning=5), response(reasoning={"effort":"x"}), response(reasoning={"effort":"low"}),
        response(include=["x"]), response(include=["message.output_text.logprobs"]),
        response(include=["message.output_text.logprobs"], stream=True), response(truncation="x"), response(background=True),
        response(background=True,stream=True), response(previous_response_id="x"), response(store=False), response(metadata=5),
        response(instructions=5), response(instructions="Be brief"), response(stream="x"), response(stream=True), response(stop="a"),
        response(user="me"), response(parallel_tool_calls="x"), response(top_logprobs=50), response(priority="x"), response(unknown=1),
        response(conversation="x"), response(prompt={"id":"x"}), response(max_tool_calls=1), response(service_tier="x"),
        response(service_tier="auto"),
        message(messages=[]), message(messages=None), message(messages=[{}]), message(messages=[{"role":"user"}]),
        message(messages=[{"role":"system","content":"x"}]), message(messages=[{"role":"user","content":[]}]),
        message(messages=[{"role":"user","content":[{"type":"text"}]}]), message(messages=[{"role":"user","content":[{"type":"nope"}]}]),
        message(messages=[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"x"}}]}]),
        message(messages=[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}]), message(max_tokens=0),
        message(max_tokens=-1), message(max_tokens=None), message(max_tokens="x"), message(max_tokens=10**9), message(max_tokens=10**30),
        message(model=None), message(model="other"), message(system=5), message(system="x"), message(system=[{"type":"text","text":"x"}]),
        message(system=[{}]), message(temperature=-1), message(temperature=2), message(temperature="x"), message(top_p=0), message(top_k=0),
        message(top_k=-1), message(stop_sequences=["n"]), message(stop_sequences="x"), message(stop_sequences=["a"]*40),
        message(stop_sequences=[""]), message(stream=True), message(stream=True,max_tokens=10**9), message(stream=True, temperature=-1),
        message(tools=[]), message(tools=[5]), message(tools=[{"name":"f"}]), message(tools=[{"name":"f","input_schema":{"type":"object"}}]),
        message(tools=[{"name":"f","input_schema":5}]), message(tools=[{"type":"bash_20250124","name":"bash"}]),
        message(tools=[{"type":"custom","name":"f","input_schema":{"type":"object"}}]), message(tool_choice={"type":"any"}),
        message(tool_choice={"type":"nope"}), message(tool_choice="any"),
        message(tools=[{"name":"f","input_schema":{"type":"object"}}], tool_choice={"type":"tool","name":"g"}),
        message(tools=[{"name":"f","input_schema":{"type":"object"}}], tool_choice={"type":"tool"}),
        message(thinking={"type":"enabled","budget_tokens":1024}), message(thinking=5), message(metadata={"user_id":"x"}),
        message(metadata=5), message(unknown=1), post("/v1/messages", None), post("/v1/messages", b"5"), post("/v1/messages", b"[]"),
        post("/v1/messages/count_tokens", {"model":"x","messages":HELLO}),
        post("/v1/messages/count_tokens", {"model":"x","messages":HELLO,"system":"x","tools":[{"name":"f","input_schema":{"type":"object"}}]}),
        post("/v1/messages/count_tokens", {}),
        score(items=[]), score(items=None), score(items="x"), score(items=[5]), score(items=[[5],[6]]), score(items=5), score(query=5),
        score(query=[5]), score(query=None), score(label_token_ids=[]), score(label_token_ids=None), score(label_token_ids=[-1]),
        score(label_token_ids=["x"]), score(label_token_ids=[5,5]), score(label_token_ids=[[5],[6]]), score(label_token_ids=[[5]]),
        score(label_token_ids=[2**70]), score(apply_softmax="x"), score(apply_softmax=True), score(temperature=0), score(temperature=2),
        score(temperature=2,apply_softmax=True), score(item_first=True), score(model=5), score(model=None),
        score(return_token_logprobs=True), score(return_pooled_hidden_states=True), score(items=["a"]*300),
        post("/tokenize",{"prompt":""}), post("/tokenize",{"prompt":[]}), post("/tokenize",{"prompt":5}),
        post("/tokenize",{"prompt":["a",5]}), post("/tokenize",{}), post("/tokenize",{"messages":HELLO}), post("/tokenize",{"messages":[]}),
        post("/tokenize",{"prompt":"a","messages":HELLO}), post("/tokenize",{"prompt":"a","add_special_tokens":False}),
        post("/tokenize",{"prompt":"é😀"}), post("/detokenize",{"tokens":[]}), post("/detokenize",{"tokens":[[]]}),
        post("/detokenize",{"tokens":[-1]}), post("/detokenize",{"tokens":[99999]}), post("/detokenize",{"tokens":[2**40]}),
        post("/detokenize",{"tokens":[2**70]}), post("/detokenize",{"tokens":["x"]}), post("/detokenize",{"tokens":[5,[6]]}),
        post("/detokenize",{"tokens":5}), post("/detokenize",{}), post("/detokenize",{"tokens":[5],"skip_special_tokens":False}),
        post("/open_session",{"capacity_of_str_len":1000,"session_id":"s"}),
        post("/open_session",{"capacity_of_str_len":1000,"session_id":"s"}), post("/open_session",{"capacity_of_str_len":"x"}),
        post("/open_session",{"capacity_of_str_len":-1,"session_id":"t"}), post("/open_session",{"capacity_of_str_len":10**30}),
        post("/open_session",{"capacity_of_str_len":1,"session_id":5}),
        post("/open_session",{"capacity_of_str_len":1,"session_id":"u","timeout":-1}),
        post("/open_session",{"capacity_of_str_len":1,"session_id":"v","timeout":"x"}),
        post("/open_session",{"capacity_of_str_len":1,"session_id":""}),
        post("/open_session",{"capacity_of_str_len":1,"session_id":"w","streaming":True}), post("/close_session",{"session_id":"s"}),
        post("/close_session",{"session_id":"s"}), post("/close_session",{"session_id":"nope"}), post("/close_session",{}),
        post("/close_session",{"session_id":5}), native(session_params={"id":"s"}), native(session_params={"id":"nope"}),
        native(session_params=5), native(session_params={"id":5}), native(session_params={}),
        native(text=["a","b"],session_params={"id":"t"}), native(session_params=[{"id":"t"}]), native(session_params={"id":"t","unknown":1}),
        post("/load_lora_adapter",{"lora_name":"a","lora_path":"/x"}), post("/load_lora_adapter",{"lora_name":5,"lora_path":"/x"}),
        post("/load_lora_adapter",{}), post("/unload_lora_adapter",{"lora_name":"a"}), post("/unload_lora_adapter",{}),
        native(lora_path="x"), native(lora_path=["x"]), native(lora_path=5), native(lora_path=""), native(lora_path=None),
        native(text=["a","b"],lora_path=["x"]), native(text=["a","b"],lora_path=[None,None]), native(lora_path=[None]),
        post("/abort_request",{}), post("/abort_request",{"rid":"x"}), post("/abort_request",{"rid":5}), post("/abort_request",{"rid":""}),
        post("/abort_request",{"abort_all":True}), post("/abort_request",{"abort_all":"x"}), post("/abort_request",{"rid":["a"]}),
        post("/abort_request",None), post("/abort_request",b"5"), post("/pause_generation",{"mode":"x"}), post("/pause_generation",b"[]"),
        post("/flush_cache?timeout=x",None), post("/flush_cache?timeout=-1",None), post("/flush_cache?timeout=1",None),
        post("/slow_down",{"forward_sleep_time":"x"}), post("/slow_down",{"forward_sleep_time":-1}),
        post("/slow_down",{"forward_sleep_time":None}), post("/slow_down",{}), post("/release_memory_occupation",{"tags":"x"}),
        post("/release_memory_occupation",{"tags":[5]}), post("/release_memory_occupation",{"tags":["nope"]}),
        post("/release_memory_occupation",{}), post("/resume_memory_occupation",{}), post("/update_weight_version",{}),
        post("/update_weight_version",{"new_version":5}),
        native(return_logprob=True, logprob_start_len=-1), native(return_logprob=True, logprob_start_len=-2),
        native(return_logprob=True, logprob_start_len=4), native(return_logprob=True, logprob_start_len=5),
        native(return_logprob=True, logprob_start_len=6), native(return_logprob=True, logprob_start_len=100),
        native(return_logprob=True, top_logprobs_num=-1), native(return_logprob=True, top_logprobs_num=0),
        native(return_logprob=True, top_logprobs_num=10**6), native(return_logprob=True, logprob_start_len="x"),
        native(return_logprob=[True]), native(text=["a","b"],return_logprob=[True]), native(text=["a","b"],return_logprob=[True,False]),
        native(text=["a","b"],return_logprob=True,top_logprobs_num=[1,2]), native(return_logprob=True,token_ids_logprob=[5]),
        native(return_logprob=True,token_ids_logprob=[]), native(return_logprob=None), native(return_logprob=1),
        post("/generate", {"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":2},"return_logprob":True,"logprob_start_len":0}),
        post("/generate", {"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":2},"return_logprob":True,"logprob_start_len":2,"top_logprobs_num":1}),
        post("/generate", {"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":2},"return_logprob":True,"logprob_start_len":3}),
        post("/generate", {"input_ids":[[5],[6]],"sampling_params":{"max_new_tokens":2},"return_logprob":True,"stream":True}),
        native(stream=None), native(stream=1), native(stream="true"), native(stream=True,text=[]),
        native(stream=True,text=["a","b"],sampling_params=[{"max_new_tokens":1},{"max_new_tokens":2}]), native(stream=True,lora_path="x"),
        native(rid=""), native(rid=[]), native(rid=None), native(rid=["a"]), native(text=["a","b"],rid=["a","b"]),
        native(text=["a","b"],rid=["a","b","c"]), native(text=["a","b"],rid=["a",5]), native(priority=10**30), native(priority=1.0),
        native(priority=True), native(cache_salt=5), native(cache_salt=["a"]), native(cache_salt=""), native(extra_key="x"),
        native(routed_dp_rank=1), native(routed_dp_rank=-1), native(data_parallel_rank=1), native(image_data="x"), native(image_data=[]),
        native(image_data=5), native(image_data=[None]), native(input_embeds=[[1.0]]), native(custom_logit_processor="x"),
        native(custom_logit_processor=5), native(return_hidden_states=False), native(return_hidden_states="x"), native(modalities=["x"]),
        native(bootstrap_host=5), native(bootstrap_room="x"), native(max_thinking_tokens=-1), native(custom_labels=5), native(routing_key=5),
        native(session_id=5), native(require_reasoning="x"), native(return_prompt_token_ids=None), native(return_prompt_token_ids="x"),
        native(return_text_in_logprobs="x"), native(text=["a"]*300, sampling_params={"max_new_tokens":1}), native(text="x"*20000),
        native(text="é😀\u0000"), native(unknown=deepd),
    ]


def body_cases():
    """Returns bodies that are no JSON, or no object."""
    bodies = [
        b'{"text": NaN}',
        b'{"text": Infinity}',
        b'{"text":"a","x":1e400}',
        b'\xff',
        b'{"text":"\xff"}',
        b'"\\ud800"',
        b'{"text":"\\ud800","sampling_params":{"max_new_tokens":1}}',
        b'['*2000+b']'*2000,
        b'{"text":"a","sampling_params":{"max_new_tokens":1},"x":'+b'['*900+b']'*900+b'}',
        b'{"text":"a","sampling_params":{"max_new_tokens":1},"x":'+b'['*1100+b']'*1100+b'}',
        b'{"text":"a",}',
        b'{"text" "a"}',
        b'{"text":"a"',
        b'{"text":"a"} x',
        b'null',
        b'5',
        b'"x"',
        b'true',
        b'{"text":"a\nb"}',
        b'{"text":"a","text":"b","sampling_params":{"max_new_tokens":1}}',
        b'\xef\xbb\xbf{"text":"a"}',
        b'{"text":"a","sampling_params":{"max_new_tokens":01}}',
        b'{"text":"a","sampling_params":{"max_new_tokens":1.}}',
        b"{'text':'a'}",
        b'  ',
        b'{"text":"\\x"}',
        b'{"text":"\x00"}',
        b'{"text":"\\u0000","sampling_params":{"max_new_tokens":1}}',
        '{"text":"é😀 ","sampling_params":{"max_new_tokens":1}}'.encode(),
        b'{"text":"a","sampling_params":{"max_new_tokens":1},"x":-}',
        b'{"text":tru}',
        b'[1',
        b'{"a":1,,}',b'{"text":"abc',
    ]
    for path in ("/generate", "/v1/chat/completions"):
        yield from (post(path, body) for body in bodies)
    for path in ["/v1/chat/completions","/v1/completions","/v1/responses","/v1/messages","/v1/score","/v1/embeddings","/v1/classify","/v1/rerank","/tokenize","/detokenize","/generate","/encode","/abort_request","/open_session","/api/chat","/api/generate","/load_lora_adapter"]:
        for body in (b"null", b"5", b'"x"', b"[]", b"{}"):
            yield post(path, body)
    for method, path in [("GET","/generate"),("DELETE","/v1/models"),("GET","/v1/chat/completions"),("HEAD","/health"),("GET","/v1/models/x/y"),("GET","/v1/loads?dp_rank=x"),("POST","/health"),("GET","/nope"),("OPTIONS","/generate"),("GET","/generate/"),("POST","/v1/completions/"),("GET","/metrics"),("GET","//health"),("GET","/v1/responses/x"),("POST","/v1/responses/x/cancel"),("DELETE","/v1/responses/x")]:
        yield method, path, None


def parser_cases():
    """Returns requests of the routes for given texts, batches of Vertex AI and weights."""
    text = "<think>Well.</think>Let me see."
    for parser in ("deepseek-r1", "qwen3", "QWEN3", "kimi", "mistral", "nope", ""):
        yield post("/separate_reasoning", {"text": text, "reasoning_parser": parser, "return_blocks": True})
        yield post("/separate_reasoning", {"text": "no tags", "reasoning_parser": parser})
    for body in ({}, {"text": 5, "reasoning_parser": "qwen3"}):
        yield post("/separate_reasoning", body)
    call = 'Sure. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    for parser in ("qwen25", "qwen", "hermes", "nope", None):
        for given in (call, call + "\n" + call, "none", "<tool_call>\n{bad\n</tool_call>", call.replace('"f"', '"g"')):
            yield post("/parse_function_call", {"text": given, "tools": TOOLS, "tool_call_parser": parser})
    yield post("/parse_function_call", {"text": call, "tools": [], "tool_call_parser": "qwen25"})
    yield post("/parse_function_call", {})
    for body in ({"instances": [{"text": "Hello"}], "parameters": {"sampling_params": PARAMS}}, {"instances": []}, {},
                 {"instances": [{"text": "a"}, {"text": "b"}], "parameters": {"sampling_params": PARAMS}}, {"instances": [{}]}):
        yield post("/vertex_generate", body)
    for body in ({"model_path": "/x"}, {"model_path": "/x", "weight_version": "2"}, {}, {"model_path": 5},
                 {"model_path": "/x", "abort_all_requests": True, "weight_version": "default"}):
        yield post("/update_weights_from_disk", body)
    group = {"master_address": "a", "master_port": 1, "rank_offset": 0, "world_size": 1}
    parameters = {"names": ["a"], "dtypes": ["b"], "shapes": [[1]]}
    for path, body in [("init_weights_update_group", group), ("init_weights_update_group", {}),
                       ("destroy_weights_update_group", {}), ("update_weights_from_distributed", parameters),
                       ("update_weights_from_distributed", {}), ("update_weights_from_tensor", {}),
                       ("update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}),
                       ("begin_weight_update", {}), ("begin_weight_update", {"selector": "x"}), ("end_weight_update", {}),
                       ("get_weights_by_name", {}), ("get_weights_by_name", {"name": "x"}),
                       ("start_profile", None), ("stop_profile", None), ("freeze_gc", None)]:
        yield post("/" + path, body)


def all_cases():
    for group, cases in [("hostile generate", native_cases()), ("hostile chat", chat_cases()),
                         ("hostile bodies", body_cases()), ("hostile others", other_cases()),
                         ("parsers and weights", parser_cases())]:
        yield from ((group, *case) for case in cases)
