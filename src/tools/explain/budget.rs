//! Where the memory of a GPU goes, and what drafts do.

use std::fmt::{self, Write as _};

use vllm_sim_config::KvCacheSize;
use vllm_sim_engine::latency::{Batch, Setup};
use vllm_sim_engine::sched::vllm::VllmConfig;

/// A line for each part, and the rule that gave it.
pub(super) fn write(
    text: &mut String,
    setup: &Setup,
    utilization: f64,
    cache: &KvCacheSize,
) -> fmt::Result {
    let (memory, reserved) = (cache.memory, cache.reserved);
    let total = setup.gpu.memory_gib * f64::from(1 << 30);
    let is_typed = (cache.available_bytes - memory.room_bytes.max(0.0)).abs() > 0.5;
    let ranks = setup.ranks();
    let spread = match setup.shape.moe {
        Some(_) if ranks.experts > ranks.tensor => {
            format!(", experts over {}", ranks.experts)
        }
        _ => String::new(),
    };
    let rule = |share: &str| format!("gpu-memory-utilization {utilization} {share}");
    let lines = [
        ("all of it", total, "the driver's count".to_owned()),
        (
            "left to others",
            total * (1.0 - utilization),
            rule("is not more"),
        ),
        (
            "weights",
            memory.weight_bytes,
            format!("config.json, over {} GPUs{spread}", setup.tp * setup.pp),
        ),
        (
            "draft model",
            reserved.drafts,
            "--speculative-config: layers by the method".to_owned(),
        ),
        (
            "adapters",
            reserved.adapters,
            "max-loras slots of max-lora-rank".to_owned(),
        ),
        (
            "activations and more",
            memory.overhead_bytes,
            "measured back from servers, by max-num-batched-tokens".to_owned(),
        ),
        (
            "KV cache",
            cache.available_bytes,
            match is_typed {
                true => "--kv-cache-memory-bytes, whatever is left".to_owned(),
                false => "the rest".to_owned(),
            },
        ),
    ];
    writeln!(text, "\nWhere the memory of each GPU goes (GB)\n")?;
    for (name, bytes, rule) in lines {
        if bytes != 0.0 {
            writeln!(text, "{name:<24}{:>10.2}   {rule}", bytes / 1e9)?;
        }
    }
    Ok(())
}

/// What drafts yield and cost.
pub(super) fn write_drafts(text: &mut String, engine: &VllmConfig) -> fmt::Result {
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
    let shown: Vec<String> = chances
        .iter()
        .map(|chance| format!("{chance:.2}"))
        .collect();
    write!(
        text,
        "Drafts      {} a step, right with {} when those before are: {:.2} tokens a step",
        chances.len(),
        shown.join(", "),
        1.0 + accepted
    )?;
    if let Some(drafting) = &engine.drafting {
        let mut batch = Batch::default();
        batch.add_decode(1024, 1 + chances.len() as u32, None);
        let ms = drafting.step(&batch, engine.speed).as_secs_f64() * 1e3;
        write!(text, "; making them takes {ms:.2} ms for one sequence")?;
    }
    writeln!(text)
}
