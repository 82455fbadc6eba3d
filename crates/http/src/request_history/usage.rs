//! `GET /admin/usage`: tokens of recorded requests, to check a gateway's bill.

use serde_json::{Map, Value, json};
use vllm_sim_service::TokenUsageCounts;

use super::{
    RecordedRequestFilter, RecordedRequests, RequestHistory, RequestOutcome, RequestRecord,
};

impl RequestHistory {
    /// Returns the token counts of the newest `max_requests` requests that match `filter`, oldest
    /// first, and the sums of the counts.
    pub(crate) fn request_usage_json(
        &self,
        filter: &RecordedRequestFilter,
        max_requests: usize,
    ) -> Value {
        let state = self.state.lock();
        let (count, newest) = state.matching_records(filter, max_requests);
        let mut total = [0_u64; 4];
        let requests = newest.iter().map(|record| {
            for (sum, (_, tokens)) in total.iter_mut().zip(record.counted_tokens()) {
                *sum += u64::from(tokens);
            }
            record.usage_json()
        });
        let requests: Vec<Value> = requests.collect();
        let names = named_counts(TokenUsageCounts::default()).map(|(name, _)| name.to_owned());
        let total: Map<String, Value> = names.into_iter().zip(total.map(Value::from)).collect();
        json!({"count": count, "dropped": state.dropped, "total": total, "requests": requests})
    }
}

impl RecordedRequests {
    /// Returns the number of requests that match `filter`, and the newest `max_requests` of them.
    pub(super) fn matching_records(
        &self,
        filter: &RecordedRequestFilter,
        max_requests: usize,
    ) -> (usize, Vec<&RequestRecord>) {
        let mut found: Vec<_> = self.records.iter().filter(|r| filter.matches_record(r)).collect();
        let count = found.len();
        (count, found.split_off(count.saturating_sub(max_requests)))
    }
}

impl RequestOutcome {
    /// Returns the outcome of a recorded request as one word, for lists of requests.
    pub(super) const fn request_outcome_name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Refused => "refused",
            Self::Cut => "cut",
        }
    }
}

impl RequestRecord {
    /// Returns the token counts of this recorded request, each with its name.
    fn counted_tokens(&self) -> [(&'static str, u32); 4] {
        let mut counts = self.usage.token_counts();
        if self.is_json && self.outcome == RequestOutcome::Cut {
            counts.delivered = 0;
        }
        named_counts(counts)
    }

    fn usage_json(&self) -> Value {
        let mut shown = json!({
            "id": self.id,
            "time": self.time,
            "path": self.path,
            "model": self.model,
            "key": self.key,
            "status": self.status,
            "outcome": self.outcome.request_outcome_name(),
        });
        for (name, tokens) in self.counted_tokens() {
            shown[name] = tokens.into();
        }
        shown
    }
}

fn named_counts(counts: TokenUsageCounts) -> [(&'static str, u32); 4] {
    [
        ("prompt_tokens", counts.prompt),
        ("cached_tokens", counts.cached),
        ("generated_tokens", counts.generated),
        ("delivered_tokens", counts.delivered),
    ]
}
