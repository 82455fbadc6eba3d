/// Protocol of the OTLP trace exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpProtocol {
    /// OTLP over gRPC to a host and port. The scheme `https` selects TLS; any other scheme, or
    /// none, selects plain text.
    #[default]
    Grpc,
    /// OTLP as protobuf in a POST to the configured URL, whose path is usually `/v1/traces`.
    HttpProtobuf,
}
