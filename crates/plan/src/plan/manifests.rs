//! Writes files that deploy a plan's answer with vLLM.

mod kserve;
mod kubernetes;
mod llmd;
mod production_stack;
mod servers;

use std::path::Path;

use anyhow::{Context, Result};

use super::report::PlanReport;
use servers::Servers;
use vllm_sim_command_line::outputs;

/// Maximum number of GPUs of a server that one pod can have.
const NODE_GPUS: u32 = 8;

/// Names and texts of the files for the cheapest deployment of a plan.
pub(super) struct Manifests(Vec<(&'static str, String)>);

impl Manifests {
    /// Describes the cheapest deployment of a plan; `None` if there is none, or its model is
    /// unknown.
    pub(super) fn of(plan: &PlanReport) -> Option<Self> {
        let answer = plan.answer()?;
        let (row, found) = plan.best_trial()?;
        let pools = row.pools.as_ref()?;
        let commands = plan.best_deployment_commands()?;
        let servers = Servers::new(&commands, found.gpus, pools.provenance.vllm_version.as_deref());
        let mut files = Vec::new();
        let mut left_out = Vec::new();
        type Writer = fn(&Servers<'_>) -> Result<String, &'static str>;
        let kinds: [(&str, Writer); 4] = [
            (kubernetes::FILE, kubernetes::file),
            (production_stack::FILE, production_stack::file),
            (llmd::FILE, llmd::file),
            (kserve::FILE, kserve::file),
        ];
        for (name, write) in kinds {
            let written = match servers.gpus > NODE_GPUS {
                true => {
                    Err("a server takes more GPUs than a node has; see vLLM's multi-node guide")
                }
                false => write(&servers),
            };
            match written {
                Ok(text) => files.push((name, text)),
                Err(why) => left_out.push((name, why)),
            }
        }
        files.push(("README.md", readme(servers.model, &answer, &plan.command, &left_out)));
        Some(Self(files))
    }

    /// Writes the files into a folder, which is made if needed.
    ///
    /// # Errors
    /// An error with the name of the file or folder that cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--deploy-dir: cannot make {}", folder.display()))?;
        for (name, text) in &self.0 {
            outputs::write_atomically(&folder.join(name), text)?;
        }
        Ok(())
    }
}

/// Returns the page with the commands that use the files.
fn readme(model: &str, answer: &str, command: &str, left_out: &[(&str, &str)]) -> String {
    let mut text = format!(
        "# {model}\n\n{answer}\n\nMade by:\n\n```sh\n{command}\n```\n\nUse one of these files:\n\n"
    );
    let all = [
        (kubernetes::FILE, kubernetes::APPLY),
        (production_stack::FILE, production_stack::APPLY),
        (llmd::FILE, llmd::APPLY),
        (kserve::FILE, kserve::APPLY),
    ];
    for (name, apply) in all {
        match left_out.iter().find(|(other, _)| *other == name) {
            Some((_, why)) => text.push_str(&format!("- No `{name}`: {why}.\n")),
            None => text.push_str(&format!("- `{name}`: `{apply}`\n")),
        }
    }
    text.push_str(
        "\nGated models need a secret: `kubectl create secret generic hf-token \
         --from-literal=token=TOKEN`. CPU and memory of the pods are not planned; look at them \
         before you apply a file.\n",
    );
    text
}
