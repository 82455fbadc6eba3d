//! Query parameters and bodies of the routes that pause, resume, profile and inspect a server.
//!
//! Source: `vllm/entrypoints/serve/dev/`, `vllm/entrypoints/rl/online/api_router.py`.

use serde_json::Value;

use crate::fault::Fault;
use crate::schema::{STR, Schema, int_between_schema, wire_model};

const PAUSE_MODE: Schema = Schema::Literal(&["abort", "wait", "keep"]);

wire_model! {
    /// Query parameters of `POST /sleep`.
    pub struct SleepQuery: Plain "Query" {
        /// Level of sleep. 0: pause scheduling; 1: offload weights; 2: discard weights.
        level: i128 [int_between_schema(0, 2)] = 1,
        /// Handling of running requests: `abort`, `wait` or `keep`.
        mode: String [PAUSE_MODE] = "abort".to_owned(),
    }
}

wire_model! {
    /// Query parameters of `POST /pause`.
    pub struct PauseQuery: Plain "Query" {
        /// Handling of running requests: `abort`, `wait` or `keep`.
        mode: String [PAUSE_MODE] = "abort".to_owned(),
        /// Whether to clear the prefix cache.
        clear_cache: bool = true,
    }
}

wire_model! {
    /// Query parameters of `POST /reset_prefix_cache`.
    pub struct ResetPrefixCacheQuery: Plain "Query" {
        /// Whether to preempt running requests before the prefix cache is reset.
        reset_running_requests: bool = false,
        /// Whether to reset the KV connector's cache too.
        reset_external: bool = false,
    }
}

wire_model! {
    /// Query parameters of `GET /get_world_size`.
    pub struct WorldSizeQuery: Plain "Query" {
        /// Whether the world size counts data-parallel ranks.
        include_dp: bool = true,
    }
}

wire_model! {
    /// Query parameters of `GET /server_info`.
    pub struct ServerInfoQuery: Plain "Query" {
        /// Format of the returned configuration: `text` or `json`.
        config_format: String [Schema::Literal(&["text", "json"])] = "text".to_owned(),
    }
}

wire_model! {
    /// Body of `POST /update_weight_version`.
    pub struct WeightVersionRequest: Plain "Body" {
        /// Version of the model weights, for later responses to report.
        new_version: String,
        /// Whether to abort running requests before the weight version changes.
        abort_all_requests: bool = false,
    }
}

wire_model! {
    default
    /// Body of `POST /start_profile`.
    pub struct StartProfileRequest: Plain "StartProfileRequest" {
        /// Prefix of the file names of profiler traces.
        profile_prefix: Option<String> = None,
        /// Number of engine steps before profiling starts.
        delay_iterations: Option<i128> = None,
        /// Number of engine steps to profile.
        max_iterations: Option<i128> = None,
        /// Arguments for the profiler, by name.
        profiler_kwargs: Option<Value> [Schema::Nullable(&Schema::Dict(&STR, &Schema::Any))] = None,
    }
}

impl StartProfileRequest {
    /// Rejects a profile request with an invalid file name or negative counts.
    ///
    /// Source: vLLM 0.33 `config/profiler.py`.
    ///
    /// # Errors
    /// vLLM's 400 for an invalid name or count.
    pub fn validate_profile_request(&self) -> Result<(), Fault> {
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
        for (name, count) in
            [("delay_iterations", self.delay_iterations), ("max_iterations", self.max_iterations)]
        {
            if count.is_some_and(|count| count < 0) {
                return Err(Fault::bad_request(format!(
                    "{name} must be greater than or equal to 0"
                )));
            }
        }
        Ok(())
    }
}
