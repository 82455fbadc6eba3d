//! Query parameters and bodies of the routes that stop, start and tune a server.
//!
//! Source: `vllm/entrypoints/serve/dev/`, `vllm/entrypoints/rl/online/api_router.py`.

use serde_json::Value;

use crate::check;
use crate::fault::Fault;
use crate::schema::{STR, Schema, int_within, wire_model};

/// `Literal["abort", "wait", "keep"]`.
const MODE: Schema = Schema::Literal(&["abort", "wait", "keep"]);

wire_model! {
    /// `POST /sleep`.
    pub struct SleepQuery: Plain "Query" {
        /// 0: scheduling stops; 1: weights leave the device; 2: weights are dropped.
        level: i128 [int_within(0, 2)] = 1,
        /// What becomes of running requests.
        mode: String [MODE] = "abort".to_owned(),
    }
}

wire_model! {
    /// `POST /pause`.
    pub struct PauseQuery: Plain "Query" {
        /// What becomes of running requests.
        mode: String [MODE] = "abort".to_owned(),
        /// Whether the prefix cache is forgotten.
        clear_cache: bool = true,
    }
}

wire_model! {
    /// `POST /reset_prefix_cache`.
    pub struct ResetQuery: Plain "Query" {
        /// Whether running requests are preempted for it.
        reset_running_requests: bool = false,
        /// Whether the connector's cache is reset too.
        reset_external: bool = false,
    }
}

wire_model! {
    /// `GET /get_world_size`.
    pub struct WorldQuery: Plain "Query" {
        /// Whether data-parallel ranks count.
        include_dp: bool = true,
    }
}

wire_model! {
    /// `GET /server_info`.
    pub struct InfoQuery: Plain "Query" {
        /// `text` or `json`.
        config_format: String [Schema::Literal(&["text", "json"])] = "text".to_owned(),
    }
}

wire_model! {
    /// `POST /update_weight_version`.
    pub struct WeightVersionRequest: Plain "Body" {
        /// What answers name from now on.
        new_version: String,
        /// Whether running requests end first.
        abort_all_requests: bool = false,
    }
}

wire_model! {
    default
    /// `POST /start_profile`.
    pub struct StartProfileRequest: Plain "StartProfileRequest" {
        /// What names of traces begin with.
        profile_prefix: Option<String> = None,
        /// Steps before it.
        delay_iterations: Option<i128> = None,
        /// Steps of it.
        max_iterations: Option<i128> = None,
        /// The profiler's own arguments.
        profiler_kwargs: Option<Value> [Schema::Nullable(&Schema::Dict(&STR, &Schema::Any))] = None,
    }
}

impl StartProfileRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }

    /// Refuses names that no file could have, and negative counts.
    /// Source: vLLM 0.33 `config/profiler.py`.
    ///
    /// # Errors
    /// vLLM's 400.
    pub fn validate(&self) -> Result<(), Fault> {
        let usual = |c: char| c.is_ascii_alphanumeric();
        let good = |name: &String| {
            name.len() <= 128
                && name.starts_with(usual)
                && name.chars().all(|c| usual(c) || "._-".contains(c))
        };
        if !self.profile_prefix.as_ref().is_none_or(good) {
            return Err(Fault::bad_request(
                "profile_prefix must be 1-128 ASCII characters, start with a letter or number, \
                 and contain only letters, numbers, '.', '_', or '-'",
            ));
        }
        for (name, count) in [
            ("delay_iterations", self.delay_iterations),
            ("max_iterations", self.max_iterations),
        ] {
            if count.is_some_and(|count| count < 0) {
                return Err(Fault::bad_request(format!(
                    "{name} must be greater than or equal to 0"
                )));
            }
        }
        Ok(())
    }
}

impl WeightVersionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value) -> Result<Self, Fault> {
        check::body(value)
    }
}
