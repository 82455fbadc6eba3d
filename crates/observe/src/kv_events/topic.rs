//! Renders the ZMQ topic of KV events, which is the first frame of a message.

/// Default template of llm-d-inference-sim for the ZMQ topic of KV events.
pub const LLMD_TOPIC_TEMPLATE: &str = "kv@{pod_ip}:{port}@{model}";

/// Values of the fields `{…}` in a template of the ZMQ topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicTemplateFields {
    /// Value of `{pod_ip}` in a ZMQ topic template: environment variable `POD_IP`.
    pub pod_ip: String,
    /// Value of `{host}` in a ZMQ topic template: host name of this machine.
    pub host: String,
    /// Value of `{port}` in a ZMQ topic template: HTTP port of the publisher's rank.
    pub port: u16,
    /// Value of `{model}` in a ZMQ topic template: the flag `--model`.
    pub model: String,
    /// Value of `{rank}` in a ZMQ topic template: data-parallel rank.
    pub rank: u32,
}

/// Error for a topic template with an unknown field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic {template:?}: {{{field}}} is not one of {{pod_ip}}, {{host}}, {{port}}, {{model}}, {{rank}}"
)]
pub struct TopicTemplateError {
    /// ZMQ topic template as configured.
    pub template: String,
    /// Name of the unknown field in the ZMQ topic template.
    pub field: String,
}

impl TopicTemplateFields {
    /// Replaces the fields of a topic template by their values; an unclosed brace is kept.
    ///
    /// # Errors
    /// [`TopicTemplateError`] for an unknown field in the template.
    pub fn render_topic(&self, template: &str) -> Result<String, TopicTemplateError> {
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
                    return Err(TopicTemplateError {
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

    fn topic() -> TopicTemplateFields {
        TopicTemplateFields {
            pod_ip: "10.0.0.7".into(),
            host: "pod-a".into(),
            port: 8001,
            model: "org/model".into(),
            rank: 1,
        }
    }

    #[test]
    fn topics_of_each_llmd_release_are_rendered() {
        // Topics of llm-d-inference-sim: current, 0.9 and 0.6.
        let rendered = [
            LLMD_TOPIC_TEMPLATE,
            "kv@{pod_ip}@{model}",
            "kv@$localhost:{port}@{model}",
            "{host}/{rank}",
            "",
        ];
        let rendered = rendered.map(|template| topic().render_topic(template).unwrap());
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
    fn unknown_topic_field_is_named_in_error() {
        let error = topic().render_topic("kv@{pod}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "topic \"kv@{pod}\": {pod} is not one of {pod_ip}, {host}, {port}, {model}, {rank}"
        );
    }

    #[test]
    fn unclosed_brace_is_kept() {
        assert_eq!(topic().render_topic("a{b").unwrap(), "a{b");
    }
}
