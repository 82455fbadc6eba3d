//! Log probabilities as arrays with one row per token, in the form of vLLM's engine core protocol.
//!
//! Source: vLLM 0.33 `vllm/v1/outputs.py`, `LogprobsLists`, `LogprobsTensors`.

use super::encode::Tensor;
use super::request::Sampling;
use vllm_sim_random::mix;
use vllm_sim_service::generate::{CONTEXT_START, Script, context_after};
use vllm_sim_service::logprobs::{Position, RankedToken};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestedLogprobs {
    output: Option<Others>,
    prompt: Option<Others>,
    /// First prompt row to score, and the token ids whose log probabilities each row gets.
    scored: Option<(usize, Vec<Vec<i64>>)>,
    temperature: f64,
}

/// Tokens in a row of log probabilities other than the chosen one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Others {
    Likeliest(usize),
    All,
    These(Vec<u32>),
}

/// Log probabilities in rows of equal length; the first column is the chosen token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogprobRows {
    pub(crate) columns: usize,
    pub(crate) ids: Vec<i32>,
    pub(crate) values: Vec<f32>,
    /// Ranks of the chosen tokens in the vocabulary, starting at 1.
    pub(crate) ranks: Vec<i32>,
}

/// Vocabulary size and seed, from which the log probabilities are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) vocabulary: u32,
    pub(crate) seed: u64,
}

impl RequestedLogprobs {
    /// Returns the log probabilities that a request asks for; `None` if there are none.
    pub(crate) fn of(sampling: &Sampling) -> Option<Self> {
        let params = &sampling.params;
        let others = |asked: Option<i128>| {
            asked.map(|most| usize::try_from(most).map_or(Others::All, Others::Likeliest))
        };
        let these = params.logprob_token_ids.as_ref().map(|ids| {
            let ids = ids.iter().filter_map(|id| u32::try_from(*id).ok());
            Others::These(ids.collect())
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
        (asked.output.is_some() || asked.of_prompt()).then_some(asked)
    }

    pub(crate) fn of_prompt(&self) -> bool {
        self.prompt.is_some() || self.scored.is_some()
    }

    /// Returns the log probabilities of output `tokens`, which begin at `position` of the script.
    pub(crate) fn rows(
        &self,
        source: Source,
        script: &Script,
        position: usize,
        tokens: &[u32],
    ) -> Option<LogprobRows> {
        let others = self.output.as_ref()?;
        let mut rows = LogprobRows::default();
        for (index, id) in tokens.iter().enumerate() {
            let context = script.context(position + index);
            rows.push(others.beside(source.at(context, self.temperature), *id));
        }
        Some(rows)
    }

    /// Returns the log probabilities of the tokens of a prompt, from its second token.
    pub(crate) fn prompt_rows(&self, source: Source, prompt: &[u32]) -> Option<LogprobRows> {
        let others = self.prompt.as_ref()?;
        let (first, rest) = prompt.split_first()?;
        let mut rows = LogprobRows::default();
        let mut context = context_after(CONTEXT_START, *first);
        for id in rest {
            rows.push(others.beside(source.at(context, 1.0), *id));
            context = context_after(context, *id);
        }
        (!rows.ranks.is_empty()).then_some(rows)
    }
}

impl RequestedLogprobs {
    /// Returns the log probabilities of the request's named tokens, as next token of each prompt
    /// row.
    ///
    /// A negative token id in the request gets a log probability of minus infinity.
    pub(crate) fn prompt_scores(&self, source: Source, prompt: &[u32]) -> Option<Tensor> {
        let (first, rows) = self.scored.as_ref()?;
        let columns = rows.first().map_or(0, Vec::len);
        let mut contexts = prompt.iter().scan(CONTEXT_START, |context, id| {
            *context = context_after(*context, *id);
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
            let position = source.at(context, 1.0);
            numbers.extend(row.iter().map(|id| match u32::try_from(*id) {
                Ok(id) => {
                    let entries = position.entries_of(id, &[]);
                    entries.first().map_or(f32::NEG_INFINITY, |own| own.logprob)
                }
                Err(_) => f32::NEG_INFINITY,
            }));
            scored += 1;
        }
        Some(Tensor {
            shape: vec![scored, columns],
            numbers,
        })
    }
}

impl Source {
    fn at(self, context: u64, temperature: f64) -> Position {
        Position {
            vocabulary: self.vocabulary,
            context: mix(self.seed, context),
            temperature,
        }
    }
}

impl Others {
    fn beside(&self, position: Position, id: u32) -> Vec<RankedToken> {
        match self {
            Self::Likeliest(most) => position.row(id, *most),
            Self::All => position.row(id, usize::MAX),
            Self::These(ids) => position.entries_of(id, ids),
        }
    }
}

impl Default for LogprobRows {
    fn default() -> Self {
        Self {
            columns: 1,
            ids: Vec::new(),
            values: Vec::new(),
            ranks: Vec::new(),
        }
    }
}

impl LogprobRows {
    fn push(&mut self, entries: Vec<RankedToken>) {
        self.columns = entries.len();
        self.ranks
            .extend(entries.first().map(|own| own.rank as i32));
        self.ids.extend(entries.iter().map(|entry| entry.id as i32));
        self.values
            .extend(entries.iter().map(|entry| entry.logprob));
    }

    pub(crate) fn rename_last(&mut self, id: u32) {
        let first = self.ids.len().saturating_sub(self.columns);
        if let Some(own) = self.ids.get_mut(first) {
            *own = id as i32;
        }
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.columns = other.columns;
        self.ids.append(&mut other.ids);
        self.values.append(&mut other.values);
        self.ranks.append(&mut other.ranks);
    }
}
