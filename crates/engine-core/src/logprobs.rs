//! Log probabilities as arrays with one row per token, in the form of vLLM's engine core protocol.
//!
//! Source: vLLM 0.33 `vllm/v1/outputs.py`, `LogprobsLists`, `LogprobsTensors`.

use super::encode::PoolingTensor;
use super::request::RequestSamplingParams;
use vllm_sim_random::mix_u64_pair;
use vllm_sim_service::generate::{EMPTY_CONTEXT_HASH, ReplyScript, extend_context_hash};
use vllm_sim_service::logprobs::{LogprobInputs, RankedTokenLogprob};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestedLogprobs {
    output: Option<OtherTokens>,
    prompt: Option<OtherTokens>,
    /// Index of the first prompt position to score, and for each scored position the token ids
    /// whose log probabilities are returned.
    scored: Option<(usize, Vec<Vec<i64>>)>,
    temperature: f64,
}

/// The tokens whose log probabilities a request asks for, in addition to that of the chosen token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OtherTokens {
    Likeliest(usize),
    All,
    These(Vec<u32>),
}

/// Log probabilities of tokens, in rows of equal length; the first column of a row is the chosen
/// token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogprobRows {
    pub(crate) columns: usize,
    pub(crate) ids: Vec<i32>,
    pub(crate) values: Vec<f32>,
    /// Ranks of the chosen tokens in the vocabulary, starting at 1.
    pub(crate) ranks: Vec<i32>,
}

/// Vocabulary size and seed, from which simulated log probabilities are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedLogprobSource {
    pub(crate) vocabulary: u32,
    pub(crate) seed: u64,
}

impl RequestedLogprobs {
    /// Returns which log probabilities a request asks for; `None` if the request asks for none.
    pub(crate) fn logprobs_requested_by(sampling: &RequestSamplingParams) -> Option<Self> {
        let params = &sampling.params;
        let others = |asked: Option<i128>| {
            asked.map(|most| usize::try_from(most).map_or(OtherTokens::All, OtherTokens::Likeliest))
        };
        let these = params.logprob_token_ids.as_ref().map(|ids| {
            let ids = ids.iter().filter_map(|id| u32::try_from(*id).ok());
            OtherTokens::These(ids.collect())
        });
        let asked = Self {
            output: these.or(others(params.logprobs)),
            prompt: others(params.prompt_logprobs),
            scored: sampling.scored.clone(),
            temperature: match params.top_k {
                1 => 0.0,
                _ => params.temperature,
            },
        };
        (asked.output.is_some() || asked.wants_prompt_logprobs()).then_some(asked)
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.prompt.is_some() || self.scored.is_some()
    }

    /// Returns the log probabilities of output `tokens`, which begin at token index `position` of
    /// the scripted reply.
    pub(crate) fn output_logprob_rows(
        &self,
        source: SimulatedLogprobSource,
        script: &ReplyScript,
        position: usize,
        tokens: &[u32],
    ) -> Option<LogprobRows> {
        let others = self.output.as_ref()?;
        let mut rows = LogprobRows::default();
        for (index, id) in tokens.iter().enumerate() {
            let context = script.context_hash(position + index);
            rows.push_row(others.row_beside(source.position_at(context, self.temperature), *id));
        }
        Some(rows)
    }

    /// Returns the log probabilities of a prompt's tokens, from the second token on.
    pub(crate) fn prompt_logprob_rows(
        &self,
        source: SimulatedLogprobSource,
        prompt: &[u32],
    ) -> Option<LogprobRows> {
        let others = self.prompt.as_ref()?;
        let (first, rest) = prompt.split_first()?;
        let mut rows = LogprobRows::default();
        let mut context = extend_context_hash(EMPTY_CONTEXT_HASH, *first);
        for id in rest {
            rows.push_row(others.row_beside(source.position_at(context, 1.0), *id));
            context = extend_context_hash(context, *id);
        }
        (!rows.ranks.is_empty()).then_some(rows)
    }
}

impl RequestedLogprobs {
    /// Returns, for each scored prompt position, the log probabilities with which the tokens named
    /// in the request come next.
    ///
    /// A negative token id in the request gets a log probability of minus infinity.
    pub(crate) fn requested_token_logprobs(
        &self,
        source: SimulatedLogprobSource,
        prompt: &[u32],
    ) -> Option<PoolingTensor> {
        let (first, rows) = self.scored.as_ref()?;
        let columns = rows.first().map_or(0, Vec::len);
        let mut contexts = prompt.iter().scan(EMPTY_CONTEXT_HASH, |context, id| {
            *context = extend_context_hash(*context, *id);
            Some(*context)
        });
        // The last token has no next prompt token.
        let last = prompt.len().saturating_sub(1);
        let mut numbers = Vec::new();
        let mut scored = 0;
        if *first > 0 {
            contexts.nth(*first - 1);
        }
        for (row, context) in rows.iter().zip(contexts).take(last.saturating_sub(*first)) {
            let position = source.position_at(context, 1.0);
            numbers.extend(row.iter().map(|id| match u32::try_from(*id) {
                Ok(id) => {
                    let entries = position.chosen_and_listed_tokens(id, &[]);
                    entries.first().map_or(f32::NEG_INFINITY, |own| own.logprob)
                }
                Err(_) => f32::NEG_INFINITY,
            }));
            scored += 1;
        }
        Some(PoolingTensor { shape: vec![scored, columns], numbers })
    }
}

impl SimulatedLogprobSource {
    fn position_at(self, context: u64, temperature: f64) -> LogprobInputs {
        LogprobInputs {
            vocabulary: self.vocabulary,
            context: mix_u64_pair(self.seed, context),
            temperature,
        }
    }
}

impl OtherTokens {
    fn row_beside(&self, position: LogprobInputs, id: u32) -> Vec<RankedTokenLogprob> {
        match self {
            Self::Likeliest(most) => position.chosen_and_top_tokens(id, *most),
            Self::All => position.chosen_and_top_tokens(id, usize::MAX),
            Self::These(ids) => position.chosen_and_listed_tokens(id, ids),
        }
    }
}

impl Default for LogprobRows {
    fn default() -> Self {
        Self { columns: 1, ids: Vec::new(), values: Vec::new(), ranks: Vec::new() }
    }
}

impl LogprobRows {
    fn push_row(&mut self, entries: Vec<RankedTokenLogprob>) {
        self.columns = entries.len();
        self.ranks.extend(entries.first().map(|own| own.rank as i32));
        self.ids.extend(entries.iter().map(|entry| entry.id as i32));
        self.values.extend(entries.iter().map(|entry| entry.logprob));
    }

    pub(crate) fn set_last_row_token_id(&mut self, id: u32) {
        let first = self.ids.len().saturating_sub(self.columns);
        if let Some(own) = self.ids.get_mut(first) {
            *own = id as i32;
        }
    }

    pub(crate) fn append_logprob_rows(&mut self, mut other: Self) {
        self.columns = other.columns;
        self.ids.append(&mut other.ids);
        self.values.append(&mut other.values);
        self.ranks.append(&mut other.ranks);
    }
}
