//! The first frame of a message.

/// Topic of llm-d-inference-sim HEAD.
pub const LLMD_TOPIC: &str = "kv@{pod_ip}:{port}@{model}";

/// What the fields of a topic template stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicFields {
    /// `{pod_ip}`: the environment variable POD_IP.
    pub pod_ip: String,
    /// `{host}`: the name of this machine.
    pub host: String,
    /// `{port}`: the HTTP port of this rank.
    pub port: u16,
    /// `{model}`: the model, as `--model` has it.
    pub model: String,
    /// `{rank}`: the data-parallel rank.
    pub rank: u32,
}

/// A template with a field that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic {template:?}: {{{field}}} is not one of {{pod_ip}}, {{host}}, {{port}}, {{model}}, {{rank}}"
)]
pub struct TopicError {
    /// As given.
    pub template: String,
    /// The field in question.
    pub field: String,
}

impl TopicFields {
    /// Puts the values in the places of their names; a brace without a partner stays.
    ///
    /// # Errors
    /// [`TopicError`] at a name that is not known.
    pub fn render(&self, template: &str) -> Result<String, TopicError> {
        let mut topic = String::with_capacity(template.len() + self.model.len());
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            topic.push_str(before);
            let Some((field, after)) = after.split_once('}') else {
                topic.push('{');
                rest = after;
                continue;
            };
            match field {
                "pod_ip" => topic.push_str(&self.pod_ip),
                "host" => topic.push_str(&self.host),
                "port" => topic.push_str(&self.port.to_string()),
                "model" => topic.push_str(&self.model),
                "rank" => topic.push_str(&self.rank.to_string()),
                _ => {
                    return Err(TopicError {
                        template: template.to_owned(),
                        field: field.to_owned(),
                    });
                }
            }
            rest = after;
        }
        topic.push_str(rest);
        Ok(topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> TopicFields {
        TopicFields {
            pod_ip: "10.0.0.7".into(),
            host: "pod-a".into(),
            port: 8001,
            model: "org/model".into(),
            rank: 1,
        }
    }

    #[test]
    fn each_generation_has_its_topic() {
        // llm-d-inference-sim's own, and those of its versions 0.9 and 0.6.
        let rendered = [
            LLMD_TOPIC,
            "kv@{pod_ip}@{model}",
            "kv@$localhost:{port}@{model}",
            "{host}/{rank}",
            "",
        ];
        let rendered = rendered.map(|template| topic().render(template).unwrap());
        let expected = [
            "kv@10.0.0.7:8001@org/model",
            "kv@10.0.0.7@org/model",
            "kv@$localhost:8001@org/model",
            "pod-a/1",
            "",
        ];
        assert_eq!(rendered, expected);
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = topic().render("kv@{pod}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "topic \"kv@{pod}\": {pod} is not one of {pod_ip}, {host}, {port}, {model}, {rank}"
        );
    }

    #[test]
    fn a_lone_brace_stays() {
        assert_eq!(topic().render("a{b").unwrap(), "a{b");
    }
}
