//! What bodies that say nothing unusual have in common, whichever route reads them straight.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use vllm_sim_python as python;

use super::shared::{Stop, StreamOptions};
use crate::body;
use crate::bounds::RequestBounds;

/// A body of usual members: those named, and the members of sampling and streams. One that may be
/// null is an `Option`, unless null is not what it is when absent; those are read by [`present`].
macro_rules! plain_body {
    ($(#[$doc:meta])* struct $name:ident for $request:ident {
        $($(#[$attribute:meta])* $member:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($(#[$attribute])* $member: $type,)*
            model: Option<String>,
            max_tokens: Option<i64>,
            temperature: Option<f64>,
            top_p: Option<f64>,
            #[serde(default, deserialize_with = "plain::present")]
            stream: Option<bool>,
            stream_options: Option<plain::Object<plain::StreamOptionsBody>>,
            #[serde(default, deserialize_with = "plain::present")]
            n: Option<i64>,
            seed: Option<i64>,
            #[serde(default, deserialize_with = "plain::present")]
            stop: Option<plain::StopBody>,
            frequency_penalty: Option<f64>,
            presence_penalty: Option<f64>,
            repetition_penalty: Option<f64>,
            top_k: Option<i64>,
            min_p: Option<f64>,
            #[serde(default)]
            min_tokens: i64,
            #[serde(default)]
            ignore_eos: bool,
            #[serde(default)]
            priority: i64,
            user: Option<String>,
            return_token_ids: Option<bool>,
        }

        impl $name {
            /// Moves the members of sampling and streams into a blank request; `None` where the
            /// schema has something to say of them.
            fn fill(self, request: &mut $request, bounds: &RequestBounds) -> Option<()> {
                if self.stream_options.is_some() && self.stream != Some(true) {
                    return None;
                }
                request.model = self.model;
                request.max_tokens = self.max_tokens.map(i128::from);
                request.temperature = self.temperature;
                request.top_p = self.top_p;
                request.stream = Some(self.stream.unwrap_or(false));
                request.stream_options = self.stream_options.map(|options| options.0.into());
                if let Some(n) = self.n {
                    request.n = i128::from(n).into();
                }
                request.seed = self.seed;
                if let Some(stop) = self.stop {
                    request.stop = Some(stop.within(bounds)?);
                }
                request.frequency_penalty = self.frequency_penalty;
                request.presence_penalty = self.presence_penalty;
                request.repetition_penalty = self.repetition_penalty;
                request.top_k = self.top_k.map(i128::from);
                request.min_p = self.min_p;
                request.min_tokens = self.min_tokens.into();
                request.ignore_eos = self.ignore_eos;
                request.priority = self.priority;
                request.user = self.user;
                request.return_token_ids = self.return_token_ids;
                Some(())
            }
        }
    };
}
pub(super) use plain_body;

/// A body that `serde_json` reads as Python does; `None` for any other.
pub(super) fn read<'b, T: Deserialize<'b>>(text: &'b [u8]) -> Option<T> {
    if !python::has_plain_numbers(text) || body::bounded(text).is_err() {
        return None;
    }
    // UTF-8 is checked once, not string by string.
    let text = std::str::from_utf8(text).ok()?;
    serde_json::from_str(text).ok().map(|Object(body)| body)
}

/// What is read from an object alone; serde's own readers take a list of the values too.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

/// A member that is not null.
pub(super) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamOptionsBody {
    #[serde(default, deserialize_with = "present")]
    include_usage: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    continuous_usage_stats: Option<bool>,
}

impl From<StreamOptionsBody> for StreamOptions {
    fn from(options: StreamOptionsBody) -> Self {
        Self {
            include_usage: Some(options.include_usage.unwrap_or(false)),
            continuous_usage_stats: Some(options.continuous_usage_stats.unwrap_or(false)),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum StopBody {
    One(String),
    Many(Vec<String>),
}

impl StopBody {
    pub(super) fn within(self, bounds: &RequestBounds) -> Option<Stop> {
        match self {
            Self::One(text) => Some(Stop(vec![text])),
            Self::Many(texts) if texts.len() <= bounds.stop_strings => Some(Stop(texts)),
            Self::Many(_) => None,
        }
    }
}
