//! An API server of vLLM, scripted.

use std::process::{Child, Command, Stdio};

use rmpv::Value;

pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tiny-llama");
/// The end of sequence of that model.
pub(crate) const EOS: u32 = 4081;
/// Longest wait for a message, in milliseconds. Only a failure takes that long.
pub(crate) const PATIENCE: i32 = 30_000;

/// Types of messages.
pub(crate) const ADD: &[u8] = &[0];
pub(crate) const ABORT: &[u8] = &[1];
pub(crate) const UTILITY: &[u8] = &[3];

/// A front end, and the engines that joined it.
pub(crate) struct FrontEnd {
    pub(crate) engine: Child,
    pub(crate) input: zmq::Socket,
    pub(crate) output: zmq::Socket,
    /// Output and input of another API server.
    pub(crate) other: (zmq::Socket, zmq::Socket),
    /// What the last rank began with.
    pub(crate) hello: Value,
    /// What each rank said of itself, by rank.
    pub(crate) ready: Vec<Value>,
    /// What each rank sent in the end of the handshake.
    pub(crate) joined: Vec<Value>,
    _handshake: zmq::Socket,
    /// What publishes to ranks, and what hears them.
    pub(crate) coordinator: Option<(zmq::Socket, zmq::Socket)>,
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }
}

/// A socket on a free port, and where it is.
pub(crate) fn bound(context: &zmq::Context, kind: zmq::SocketType) -> (zmq::Socket, String) {
    let socket = context.socket(kind).unwrap();
    socket.set_rcvtimeo(PATIENCE).unwrap();
    socket.set_linger(0).unwrap();
    // A router drops what it has no room for.
    socket.set_sndhwm(0).unwrap();
    // Little is read ahead of a test that does not read.
    if kind == zmq::PULL {
        socket.set_rcvhwm(4).unwrap();
    }
    socket.bind("tcp://127.0.0.1:*").unwrap();
    let at = socket.get_last_endpoint().unwrap().unwrap();
    (socket, at)
}

pub(crate) fn map(entries: &[(&str, Value)]) -> Value {
    let entries = entries.iter().map(|(k, v)| ((*k).into(), v.clone()));
    Value::Map(entries.collect())
}

pub(crate) fn get<'v>(map: &'v Value, key: &str) -> &'v Value {
    let entries = map.as_map().expect("a map").iter();
    let mut found = entries.filter(|(k, _)| k.as_str() == Some(key));
    found.next().map_or(&Value::Nil, |(_, value)| value)
}

pub(crate) fn pack(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

pub(crate) fn unpack(bytes: &[u8]) -> Value {
    rmpv::decode::read_value(&mut &*bytes).unwrap()
}

/// The rank that a socket's identity names.
pub(crate) fn rank_of(identity: &[u8]) -> usize {
    u16::from_le_bytes(identity.try_into().unwrap()).into()
}

impl FrontEnd {
    /// Starts an engine of one rank and lets it join.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::of_ranks(1, false, flags)
    }

    pub(crate) fn of_ranks(ranks: usize, coordinated: bool, flags: &[&str]) -> Self {
        Self::logged_to(Stdio::null(), ranks, coordinated, flags)
    }

    /// With what the engine writes on standard error going there.
    pub(crate) fn logged_to(log: Stdio, ranks: usize, coordinated: bool, flags: &[&str]) -> Self {
        let context = zmq::Context::new();
        let (handshake, at) = bound(&context, zmq::ROUTER);
        let (input, input_at) = bound(&context, zmq::ROUTER);
        let (output, output_at) = bound(&context, zmq::PULL);
        let (other, other_at) = bound(&context, zmq::PULL);
        let (other_input, other_input_at) = bound(&context, zmq::ROUTER);
        let coordinator = coordinated.then(|| {
            let (publishes, at) = bound(&context, zmq::XPUB);
            let (hears, back) = bound(&context, zmq::PULL);
            ((publishes, hears), (at, back))
        });
        let port = at.rsplit(':').next().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-sim"));
        // As `vllm-rs serve --python vllm-sim` starts it.
        command.args(["-m", "vllm.entrypoints.cli.main", "serve", MODEL, "--headless"]);
        command.args(["--data-parallel-address", "127.0.0.1"]);
        command.args(["--data-parallel-rpc-port", port]);
        command.args(["--data-parallel-size", &ranks.to_string(), "--seed", "7"]);
        command.args(flags).stderr(log);
        let engine = command.spawn().unwrap();
        let addresses = map(&[
            ("inputs", vec![Value::from(input_at), other_input_at.into()].into()),
            ("outputs", vec![Value::from(output_at), other_at.into()].into()),
            (
                "coordinator_input",
                coordinator.as_ref().map_or(Value::Nil, |c| c.1.0.as_str().into()),
            ),
            (
                "coordinator_output",
                coordinator.as_ref().map_or(Value::Nil, |c| c.1.1.as_str().into()),
            ),
            ("frontend_stats_publish_address", Value::Nil),
        ]);
        let init = map(&[("addresses", addresses), ("parallel_config", map(&[]))]);
        let mut hello = Value::Nil;
        for _ in 0..ranks {
            let frames = handshake.recv_multipart(0).expect("a HELLO");
            hello = unpack(&frames[1]);
            assert_eq!(get(&hello, "status").as_str(), Some("HELLO"));
            let answer = [frames[0].clone(), pack(&init)];
            handshake.send_multipart(answer, 0).unwrap();
        }
        let mut ready = vec![Value::Nil; ranks];
        for _ in 0..ranks {
            let frames = input.recv_multipart(0).expect("a ready response");
            ready[rank_of(&frames[0])] = unpack(&frames[1]);
            let again = other_input.recv_multipart(0).expect("the same response");
            assert_eq!(again.len(), 2);
        }
        if let Some(((publishes, _), _)) = &coordinator {
            // They wait for each other here: all have to subscribe before one goes on.
            for _ in 0..ranks {
                // libzmq tells of the first subscription only.
                publishes.set_xpub_verbose(true).unwrap();
                assert_eq!(publishes.recv_bytes(0).expect("a subscription"), [1]);
            }
            publishes.send("READY", 0).unwrap();
        }
        let mut joined = vec![Value::Nil; ranks];
        for _ in 0..ranks {
            let frames = handshake.recv_multipart(0).expect("a READY");
            joined[rank_of(&frames[0])] = unpack(&frames[1]);
        }
        Self {
            engine,
            input,
            output,
            other: (other, other_input),
            hello,
            ready,
            joined,
            _handshake: handshake,
            coordinator: coordinator.map(|(sockets, _)| sockets),
        }
    }

    pub(crate) fn send(&self, rank: u16, kind: &[u8], payload: &Value) {
        let frames = [&rank.to_le_bytes()[..], kind, &pack(payload)];
        self.input.send_multipart(frames, 0).unwrap();
    }

    /// Asks rank 0 for a generation.
    pub(crate) fn add(&self, id: &str, params: &[(&str, Value)]) {
        self.send(0, ADD, &request(id, params));
    }

    /// The next message: its fields.
    pub(crate) fn next(&self) -> Vec<Value> {
        let frame = self.output.recv_bytes(0).expect("a message");
        let Value::Array(fields) = unpack(&frame) else {
            panic!("no array: {frame:?}");
        };
        fields
    }

    /// Calls a method and waits for its answer: what it failed with, or its result.
    pub(crate) fn call(&self, method: &str, args: Vec<Value>) -> Result<Value, String> {
        let id = u64::MAX - 1;
        let call = vec![0.into(), id.into(), method.into(), Value::Array(args)];
        self.send(0, UTILITY, &call.into());
        loop {
            let message = self.next();
            let Some(answer) = message.get(4).and_then(Value::as_array) else {
                continue;
            };
            if answer[0].as_u64() != Some(id) {
                continue;
            }
            return match answer[1].as_str() {
                Some(failure) => Err(failure.to_owned()),
                None => Ok(answer[2].as_array().unwrap()[1].clone()),
            };
        }
    }

    /// The outputs of a request up to its end, each with the instant of its message, and what ran
    /// after the last one.
    pub(crate) fn outputs(&self, id: &str) -> (Vec<(f64, Vec<Value>)>, Option<u64>) {
        let mut found = Vec::new();
        loop {
            let message = self.next();
            let outputs = message[1].as_array().unwrap();
            for output in outputs {
                let fields = output.as_array().unwrap().clone();
                if fields[0].as_str() != Some(id) {
                    continue;
                }
                let ended = !fields[5].is_nil();
                found.push((message[3].as_f64().unwrap(), fields));
                if ended {
                    return (found, running(&message));
                }
            }
        }
    }

    /// Waits for something of a request.
    pub(crate) fn first_output(&self, id: &str) {
        let of = |message: Vec<Value>| {
            let outputs = message[1].as_array().cloned().unwrap_or_default();
            outputs.iter().any(|output| output[0].as_str() == Some(id))
        };
        while !of(self.next()) {}
    }

    /// Waits until nothing runs.
    pub(crate) fn rests(&self) {
        while running(&self.next()) != Some(0) {}
    }
}

/// How many requests ran when a message was sent.
pub(crate) fn running(message: &[Value]) -> Option<u64> {
    let stats = message.get(2).filter(|stats| stats.is_map())?;
    get(stats, "num_running_reqs").as_u64()
}

pub(crate) fn request(id: &str, params: &[(&str, Value)]) -> Value {
    let mut fields = vec![Value::Nil; 12];
    fields[0] = id.into();
    fields[1] = ids(&[11, 12, 13]);
    fields[3] = map(params);
    fields[5] = Value::from(1.7e9);
    fields[11] = 0.into();
    fields.into()
}

pub(crate) fn ids(ids: &[u32]) -> Value {
    ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>().into()
}

/// All tokens of a request's outputs.
pub(crate) fn tokens(outputs: &[(f64, Vec<Value>)]) -> Vec<u32> {
    let outputs = outputs.iter().flat_map(|(_, fields)| fields[1].as_array().unwrap());
    outputs.map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The numbers of an array of 32-bit values, as they lie in the message.
pub(crate) fn numbers(array: &Value) -> (String, Vec<u64>, Vec<[u8; 4]>) {
    let fields = array.as_array().unwrap();
    let shape = fields[1].as_array().unwrap().iter();
    let (kind, bytes) = fields[2].as_ext().expect("raw bytes");
    assert_eq!(kind, 3);
    let numbers = bytes.chunks_exact(4).map(|four| four.try_into().unwrap());
    (
        fields[0].as_str().unwrap().to_owned(),
        shape.map(|size| size.as_u64().unwrap()).collect(),
        numbers.collect(),
    )
}
