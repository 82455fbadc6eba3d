/// Protocol of the trace exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpProtocol {
    /// gRPC to a host and port; the scheme `https` selects TLS, others and none do not.
    #[default]
    Grpc,
    /// Protobuf in a POST to the complete URL, whose path is usually `/v1/traces`.
    HttpProtobuf,
}
