//! Writes files that deploy a plan's answer with vLLM.

mod kserve;
mod kubernetes;
mod llmd;
mod production_stack;
mod servers;

use std::path::Path;

use anyhow::{Context, Result};

use super::report::PlanReport;
use servers::{DeployedServers, DeploymentTarget, WRITTEN_BY_PLAN_COMMENT};
use vllm_sim_command_line::{output_files, refuse};

/// Maximum number of GPUs of a server that runs in a single pod.
const NODE_GPUS: u32 = 8;

/// Name of the Markdown file with the plan's answer and the commands to deploy it.
const PAGE: &str = "DEPLOY.md";

const TARGETS: [DeploymentTarget; 4] =
    [kubernetes::TARGET, production_stack::TARGET, llmd::TARGET, kserve::TARGET];

/// Names and texts of the files for the cheapest deployment of a plan; `None` for a file that is
/// left out.
pub(super) struct DeploymentFiles(Vec<(&'static str, Option<String>)>);

impl DeploymentFiles {
    /// Describes the cheapest deployment of a plan; `None` if there is none, or its model is
    /// unknown.
    pub(super) fn from_plan(plan: &PlanReport) -> Option<Self> {
        let answer = plan.best_deployment_summary_line()?;
        let (row, found) = plan.best_candidate_and_trial()?;
        let pools = row.pools.as_ref()?;
        let commands = plan.best_deployment_commands()?;
        let servers = DeployedServers::servers_from_deployment_commands(
            &commands,
            found.gpus,
            pools.provenance.vllm_version.as_deref(),
        );
        let mut page = format!(
            "<!-- {WRITTEN_BY_PLAN_COMMENT} -->\n# {}\n\n{answer}\n\nMade by:\n\n```sh\n{}\n```\n\nUse one of \
             these files:\n\n",
            servers.model, plan.command
        );
        let mut files = Vec::new();
        for DeploymentTarget { file, apply, render } in TARGETS {
            let rendered = match servers.gpus > NODE_GPUS {
                true => {
                    Err("a server takes more GPUs than a node has; see vLLM's multi-node guide")
                }
                false => render(&servers),
            };
            page.push_str(&match &rendered {
                Ok(_) => format!("- `{file}`: `{apply}`\n"),
                Err(why) => format!("- No `{file}`: {why}.\n"),
            });
            files.push((file, rendered.ok()));
        }
        page.push_str(
            "\nGated models need a secret: `kubectl create secret generic hf-token \
             --from-literal=token=TOKEN`. CPU and memory of the pods are not planned; look at them \
             before you apply a file.\n",
        );
        files.push((PAGE, Some(page)));
        Some(Self(files))
    }

    /// Refuses a folder that contains a file with the name of a deployment file, unless a plan
    /// wrote that file.
    ///
    /// # Errors
    /// A usage error with the name of the file.
    pub(super) fn check_output_folder(folder: &Path) -> Result<()> {
        let names = TARGETS.iter().map(|target| target.file).chain([PAGE]);
        for path in names.map(|name| folder.join(name)) {
            if path.symlink_metadata().is_ok() && !is_written_by_plan(&path) {
                refuse!(
                    "--deploy-dir: {} exists and was not written by `vllm-sim plan`; name another \
                     folder",
                    path.display()
                );
            }
        }
        Ok(())
    }

    /// Writes the deployment files into a folder, which is made if needed, and removes left-out
    /// files of an earlier plan.
    ///
    /// # Errors
    /// An error with the name of the file or folder that cannot be written, and those of
    /// [`Self::check_output_folder`].
    pub(super) fn write_to_folder(&self, folder: &Path) -> Result<()> {
        Self::check_output_folder(folder)?;
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--deploy-dir: cannot make {}", folder.display()))?;
        for (name, text) in &self.0 {
            let path = folder.join(name);
            match text {
                Some(text) => output_files::write_atomically(&path, text)?,
                None if path.symlink_metadata().is_ok() => std::fs::remove_file(&path)
                    .with_context(|| format!("--deploy-dir: cannot remove {}", path.display()))?,
                None => {}
            }
        }
        Ok(())
    }
}

fn is_written_by_plan(path: &Path) -> bool {
    let text = std::fs::read(path).unwrap_or_default();
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(first).contains(WRITTEN_BY_PLAN_COMMENT)
}
