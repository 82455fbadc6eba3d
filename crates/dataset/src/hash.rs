use sha2::{Digest, Sha256};

/// SHA-256 hash of a prompt, the key of its replies in a dataset.
pub type PromptHash = [u8; 32];

/// Hashes the token ids of a prompt, each as 4 bytes, little-endian (key of
/// [`DatasetFormat::Tokens`](super::DatasetFormat::Tokens)).
pub fn hash_prompt_tokens(tokens: &[u32]) -> PromptHash {
    let mut hasher = Sha256::new();
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Hashes a completion prompt as in a dataset of format v0.6: as a single user message.
pub fn hash_completion_prompt(prompt: &str) -> PromptHash {
    hash_conversation([("user", prompt)])
}

/// Hashes a conversation as in a dataset of format v0.6: `### ROLE:\nTEXT\n` per message.
///
/// Roles unknown to the format count as `unknown`.
pub fn hash_conversation<'m>(messages: impl IntoIterator<Item = (&'m str, &'m str)>) -> PromptHash {
    let mut hasher = Sha256::new();
    for (role, text) in messages {
        let role = match role {
            "system" | "user" | "assistant" | "tool" | "developer" | "function" => role,
            _ => "unknown",
        };
        for part in ["### ", role, ":\n", text, "\n"] {
            hasher.update(part);
        }
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(hash: PromptHash) -> String {
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn token_ids_hash_as_upstream_hashes_them() {
        let ids = [3_157_421_587, 1_477_013_615, 186_949_092, 2_949_673_445, 722_245_873];
        let known = "fc77fff3e26618799a295ee2b6ed0a5c60bfcde3d33b674d36dcf63dfc224b78";
        assert_eq!(hex(hash_prompt_tokens(&ids)), known);
    }

    #[test]
    fn prompt_text_hashes_as_in_format_v0_6() {
        let known = "ef12f80f8cf0b1e200b29786357fc6ff075eeec08086e408f65c15c6d1dabef0";
        assert_eq!(hex(hash_completion_prompt("This is a test.")), known);
    }

    #[test]
    fn unknown_message_roles_hash_alike() {
        assert_eq!(hash_conversation([("poet", "x")]), hash_conversation([("bard", "x")]));
        assert_ne!(hash_conversation([("user", "x")]), hash_conversation([("bard", "x")]));
    }
}
