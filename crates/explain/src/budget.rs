//! Writes the text that explains GPU memory, sampling and speculative decoding of a deployment.

use std::fmt::{self, Write as _};

use vllm_sim_config::{KvCacheCapacity, MediaEncoderConfig};
use vllm_sim_engine::latency::{BatchWork, RooflineModelSetup};
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_engine::{MediaEncoderKind, PromptMediaItem};

const SAMPLE_EMBEDDINGS: u32 = 1000;

pub(super) fn write_gpu_memory_budget(
    text: &mut String,
    setup: &RooflineModelSetup,
    utilization: f64,
    cache: &KvCacheCapacity,
) -> fmt::Result {
    let (memory, reserved) = (cache.memory, cache.reserved);
    let total = setup.gpu.memory_gib * f64::from(1 << 30);
    let is_typed = (cache.available_bytes - memory.room_bytes.max(0.0)).abs() > 0.5;
    let ranks = setup.weight_ranks();
    let spread = match setup.shape.moe {
        Some(_) if ranks.experts > ranks.tensor => {
            format!(", experts over {}", ranks.experts)
        }
        _ => String::new(),
    };
    let rule = |share: &str| format!("gpu-memory-utilization {utilization} {share}");
    let lines = [
        ("all of it", total, "the driver's count".to_owned()),
        ("not used by vLLM", total * (1.0 - utilization), rule("is not more")),
        (
            "weights",
            memory.weight_bytes,
            format!("config.json, over {} GPUs{spread}", setup.tp * setup.pp),
        ),
        ("draft model", reserved.drafts, "--speculative-config: layers by the method".to_owned()),
        ("adapters", reserved.adapters, "max-loras slots of max-lora-rank".to_owned()),
        (
            "activations and more",
            memory.overhead_bytes,
            "the largest step, sampling, CUDA graphs, buffers; from start-up logs".to_owned(),
        ),
        (
            "KV cache",
            cache.available_bytes,
            match is_typed {
                true => "--kv-cache-memory-bytes, regardless of free memory".to_owned(),
                false => "the rest".to_owned(),
            },
        ),
    ];
    writeln!(text, "\nMemory of each GPU (GB)\n")?;
    for (name, bytes, rule) in lines {
        if bytes != 0.0 {
            writeln!(text, "{name:<24}{:>10.2}   {rule}", bytes / 1e9)?;
        }
    }
    Ok(())
}

pub(super) fn write_encoder_times(
    text: &mut String,
    engine: &VllmSchedulerConfig,
    encoder: &MediaEncoderConfig,
) -> fmt::Result {
    let split = match encoder.chunked_input {
        true => "",
        false => "; no step reads an item in part",
    };
    writeln!(
        text,
        "Encoder     at most {} embeddings a step, and as many in its cache: {}{split}",
        encoder.budget, encoder.rule
    )?;
    let input = |kind| PromptMediaItem { key: 0, kind, start: 0, len: SAMPLE_EMBEDDINGS };
    for (kind, shape, name) in [
        (MediaEncoderKind::Vision, encoder.shapes.0, "an image"),
        (MediaEncoderKind::Audio, encoder.shapes.1, "audio"),
    ] {
        let ms = engine.media_encoding_time(std::iter::once(input(kind))).as_secs_f64() * 1e3;
        if let Some(shape) = shape.filter(|_| ms > 0.0) {
            writeln!(
                text,
                "            {SAMPLE_EMBEDDINGS} of {name} take {ms:.1} ms, an estimate: {} \
                 layers of {}, {} patches or frames each",
                shape.layers, shape.hidden, shape.merged
            )?;
        }
    }
    let ms = engine.media_encoding_time(std::iter::once(input(MediaEncoderKind::Vision)));
    if encoder.shapes == (None, None) && !ms.is_zero() {
        writeln!(
            text,
            "            {SAMPLE_EMBEDDINGS} take {:.1} ms, a typical value: config.json does not \
             describe the encoder",
            ms.as_secs_f64() * 1e3
        )?;
    }
    Ok(())
}

pub(super) fn write_draft_model_times(
    text: &mut String,
    engine: &VllmSchedulerConfig,
) -> fmt::Result {
    let Some(speculation) = &engine.speculation else {
        return Ok(());
    };
    let chances = &speculation.accept;
    let mut accepted = 0.0;
    let mut all = 1.0;
    for chance in chances {
        all *= chance;
        accepted += all;
    }
    let shown: Vec<String> = chances.iter().map(|chance| format!("{chance:.2}")).collect();
    write!(
        text,
        "Drafts      {} per step, accepted with probability {} if all before are accepted: {:.2} \
         tokens per step",
        chances.len(),
        shown.join(", "),
        1.0 + accepted
    )?;
    if let Some(drafting) = &engine.drafting {
        let mut batch = BatchWork::default();
        batch.add_decoding_sequence(1024, 1 + chances.len() as u32, None);
        let ms = drafting.draft_time(&batch, engine.speed).as_secs_f64() * 1e3;
        write!(text, "; making them takes {ms:.2} ms for one sequence")?;
    }
    writeln!(text)
}

pub(super) fn write_sampling_cost(
    text: &mut String,
    setup: &RooflineModelSetup,
    because: &str,
) -> fmt::Result {
    let co = &setup.coefficients;
    match setup.truncated_sampling {
        true => writeln!(
            text,
            "Sampling    the vocabulary is cut, which takes {:.2} ms a step ({because})",
            (co.truncated_us + co.truncated_vocab_us * f64::from(setup.shape.vocab)) / 1e3,
        ),
        false => writeln!(text, "Sampling    the vocabulary is not cut ({because})"),
    }?;
    if setup.penalized_sampling {
        writeln!(
            text,
            "            the repetition penalty takes {:.2} us a step and sequence",
            co.penalty_vocab_us * f64::from(setup.shape.vocab) * 3.35 / setup.gpu.bandwidth_tbs,
        )?;
    }
    Ok(())
}
