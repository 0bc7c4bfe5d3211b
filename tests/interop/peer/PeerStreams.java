import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.AppendOnlyStreamReader;
import org.apache.distributedlog.AppendOnlyStreamWriter;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.EndOfStreamException;
import org.apache.distributedlog.exceptions.ReadCancelledException;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.io.CompressionCodec;
import org.apache.distributedlog.metadata.DLMetadata;

/** Streams by DistributedLog: namespaces, one writer for each stream, readers, subscriptions. */
final class PeerStreams {
    private static final long PATIENCE_S = 60;

    private final Map<String, Namespace> namespaces = new ConcurrentHashMap<>();
    private final Map<String, AsyncLogWriter> writers = new ConcurrentHashMap<>();
    private final Map<String, List<CompletableFuture<DLSN>>> begun = new ConcurrentHashMap<>();

    boolean run(String op, JsonNode request, ObjectNode result) throws Exception {
        switch (op) {
            case "bind_namespace": bind(request); return true;
            case "close_namespaces": close(request); return true;
            case "create_stream": namespace(request).createLog(stream(request)); return true;
            case "delete_stream": namespace(request).deleteLog(stream(request)); return true;
            case "list_streams": list(request, result); return true;
            case "show_segments": segments(request, result); return true;
            case "open_writer": open(request, result); return true;
            case "write_records": write(request, result); return true;
            case "write_set": writeSet(request, result); return true;
            case "begin_writing": beginWriting(request); return true;
            case "written_records": writtenRecords(request, result); return true;
            case "find_txids": findTxids(request, result); return true;
            case "count_records": count(request, result); return true;
            case "truncate_stream":
                result.put("done", await(writer(request).truncate(position(request.get("before")))));
                return true;
            case "seal_stream": await(writer(request).markEndOfStream()); return true;
            case "abort_writer": await(writers.remove(key(request)).asyncAbort()); return true;
            case "close_writer": await(writers.remove(key(request)).asyncClose()); return true;
            case "read_records": read(request, result); return true;
            case "write_bytes": writeBytes(request, result); return true;
            case "read_bytes": readBytes(request, result); return true;
            case "commit_position": commit(request); return true;
            case "committed_positions": committed(request, result); return true;
            default: return false;
        }
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    // Names

    private static String stream(JsonNode request) {
        return request.get("stream").asText();
    }

    /** A writer belongs to a namespace with its options, and a stream. */
    private static String key(JsonNode request) {
        return request.get("uri").asText() + request.path("conf") + stream(request);
    }

    private AsyncLogWriter writer(JsonNode request) {
        AsyncLogWriter writer = writers.get(key(request));
        if (writer == null) {
            throw new IllegalStateException("no writer of " + key(request));
        }
        return writer;
    }

    private synchronized Namespace namespace(JsonNode request) throws Exception {
        String uri = request.get("uri").asText();
        String key = uri + request.path("conf");
        Namespace found = namespaces.get(key);
        if (found == null) {
            found = NamespaceBuilder.newBuilder().conf(configuration(request.path("conf")))
                    .uri(URI.create(uri)).clientId("java").build();
            namespaces.put(key, found);
        }
        return found;
    }

    private static DistributedLogConfiguration configuration(JsonNode options) {
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setImmediateFlushEnabled(true);
        conf.setPeriodicFlushFrequencyMilliSeconds(10); // or the last record stays invisible
        conf.setOutputBufferSize(1024);
        conf.setLockTimeout(20);
        conf.setZKSessionTimeoutSeconds(6);
        conf.setNumWorkerThreads(2);
        conf.setReadLACLongPollTimeout(200);
        conf.setLogSegmentRollingIntervalMinutes(0);
        conf.setRetentionPeriodHours(0);
        conf.setExplicitTruncationByApplication(true);
        options.fields().forEachRemaining(
                option -> conf.setProperty(option.getKey(), option.getValue().asText()));
        return conf;
    }

    private static void bind(JsonNode request) throws Exception {
        BKDLConfig where = new BKDLConfig(
                request.get("servers").asText(), request.get("ledgers").asText());
        DLMetadata.create(where).create(URI.create(request.get("uri").asText()));
    }

    /** A namespace whose cluster is about to end, with whatever options it was opened. */
    private synchronized void close(JsonNode request) {
        String uri = request.get("uri").asText();
        for (String key : new ArrayList<>(namespaces.keySet())) {
            if (key.startsWith(uri)) {
                namespaces.remove(key).close();
            }
        }
    }

    private void list(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode names = result.putArray("names");
        for (Iterator<String> each = namespace(request).getLogs(); each.hasNext();) {
            names.add(each.next());
        }
    }

    private void segments(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode segments = result.putArray("segments");
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            for (LogSegmentMetadata each : log.getLogSegments()) {
                segments.addArray().add(each.getLogSegmentSequenceNumber())
                        .add(each.getLogSegmentId()).add(each.isInProgress())
                        .add(each.getRecordCount()).add(each.isTruncated() ? 2
                                : each.isPartiallyTruncated() ? 1 : 0)
                        .add(each.getStartSequenceId());
            }
        }
    }

    // Writing

    private void open(JsonNode request, ObjectNode result) throws Exception {
        DistributedLogManager log = namespace(request).openLog(stream(request));
        AsyncLogWriter writer = await(log.openAsyncLogWriter());
        writers.put(key(request), writer);
        result.put("last_txid", writer.getLastTxId());
    }

    private void write(JsonNode request, ObjectNode result) throws Exception {
        long txid = request.get("txid").asLong();
        List<LogRecord> records = new ArrayList<>();
        for (JsonNode payload : request.get("payloads")) {
            records.add(new LogRecord(txid++, bytes(payload)));
        }
        List<CompletableFuture<DLSN>> stored = new ArrayList<>();
        if (request.path("bulk").asBoolean()) {
            stored = await(writer(request).writeBulk(records));
        } else {
            for (LogRecord record : records) {
                stored.add(writer(request).write(record));
            }
        }
        answer(stored, result);
    }

    /** Hands records to the writer, and waits for none of them. */
    private void beginWriting(JsonNode request) throws Exception {
        long txid = request.get("txid").asLong();
        List<CompletableFuture<DLSN>> stored = new ArrayList<>();
        for (JsonNode payload : request.get("payloads")) {
            stored.add(writer(request).write(new LogRecord(txid++, bytes(payload))));
        }
        begun.put(key(request), stored);
    }

    /** Waits for what was begun; where the records are, up to the first that was refused. */
    private void writtenRecords(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode positions = result.putArray("positions");
        try {
            for (CompletableFuture<DLSN> each : begun.remove(key(request))) {
                put(positions.addArray(), await(each));
            }
        } catch (ExecutionException refused) {
            positions.remove(positions.size() - 1);
            result.put("refused", refused.getCause().getClass().getSimpleName());
        }
    }

    private void writeSet(JsonNode request, ObjectNode result) throws Exception {
        LogRecordSet.Writer set = LogRecordSet.newWriter(
                1024, CompressionCodec.Type.valueOf(request.get("codec").asText().toUpperCase()));
        List<CompletableFuture<DLSN>> stored = new ArrayList<>();
        for (JsonNode payload : request.get("payloads")) {
            CompletableFuture<DLSN> one = new CompletableFuture<>();
            set.writeRecord(ByteBuffer.wrap(bytes(payload)), one);
            stored.add(one);
        }
        LogRecord host = new LogRecord(request.get("txid").asLong(), set.getBuffer());
        host.setRecordSet();
        DLSN first = await(writer(request).write(host));
        set.completeTransmit(
                first.getLogSegmentSequenceNo(), first.getEntryId(), first.getSlotId());
        answer(stored, result);
    }

    private static void answer(List<CompletableFuture<DLSN>> stored, ObjectNode result)
            throws Exception {
        ArrayNode positions = result.putArray("positions");
        for (CompletableFuture<DLSN> each : stored) {
            put(positions.addArray(), await(each));
        }
    }

    // Reading

    /** Reads so many records, or fewer if the stream is sealed or nothing comes for a while. */
    private void read(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode records = result.putArray("records");
        long patienceMs = request.path("patience_ms").asLong(20_000);
        int count = request.get("count").asInt();
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            AsyncLogReader reader = await(log.openAsyncLogReader(position(request.get("start"))));
            try {
                while (records.size() < count) {
                    LogRecordWithDLSN each =
                            reader.readNext().get(patienceMs, TimeUnit.MILLISECONDS);
                    ArrayNode record = records.addArray();
                    put(record, each.getDlsn());
                    record.add(each.getSequenceId()).add(each.getTransactionId());
                    record.add(Base64.getEncoder().encodeToString(each.getPayload()));
                }
            } catch (java.util.concurrent.TimeoutException nothingCame) {
                result.put("end", "idle");
            } catch (ExecutionException failed) {
                if (!(failed.getCause() instanceof EndOfStreamException)) {
                    throw failed;
                }
                result.put("end", "sealed");
            } finally {
                await(reader.asyncClose());
            }
        }
    }

    private void findTxids(JsonNode request, ObjectNode result) throws Exception {
        ArrayNode positions = result.putArray("positions");
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            for (JsonNode txid : request.get("txids")) {
                put(positions.addArray(), await(log.getDLSNNotLessThanTxId(txid.asLong())));
            }
        }
    }

    private void count(JsonNode request, ObjectNode result) throws Exception {
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            result.put("records", await(log.getLogRecordCountAsync(
                    position(request.get("start")))));
        }
    }

    // Bytes

    private void writeBytes(JsonNode request, ObjectNode result) throws Exception {
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            AppendOnlyStreamWriter file = log.getAppendOnlyStreamWriter();
            try {
                result.put("began", file.position());
                for (JsonNode payload : request.get("payloads")) {
                    await(file.write(bytes(payload)));
                }
                file.force(false);
                result.put("ended", file.position());
            } finally {
                file.close();
            }
        }
    }

    /** Reads so many bytes, or as many as there are. */
    /** The peer's reader closes a reader of its own as it skips, and may hear of that itself. */
    private void readBytes(JsonNode request, ObjectNode result) throws Exception {
        for (int left = 3;; left--) {
            try {
                readBytesOnce(request, result);
                return;
            } catch (ReadCancelledException error) {
                if (left == 0) {
                    throw error;
                }
            }
        }
    }

    private void readBytesOnce(JsonNode request, ObjectNode result) throws Exception {
        int count = request.get("count").asInt();
        long offset = request.get("offset").asLong();
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        try (DistributedLogManager log = namespace(request).openLog(stream(request));
                AppendOnlyStreamReader file = log.getAppendOnlyStreamReader()) {
            if (offset > 0) {
                result.put("skipped", file.skipTo(offset));
            }
            byte[] part = new byte[count];
            long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (found.size() < count && System.nanoTime() < endNs) {
                int size = file.read(part, 0, count - found.size());
                if (size > 0) {
                    found.write(part, 0, size);
                }
            }
            result.put("position", file.position());
        }
        result.put("data", Base64.getEncoder().encodeToString(found.toByteArray()));
    }

    private void commit(JsonNode request) throws Exception {
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            await(log.getSubscriptionsStore().advanceCommitPosition(
                    request.get("subscriber").asText(), position(request.get("position"))));
        }
    }

    private void committed(JsonNode request, ObjectNode result) throws Exception {
        ObjectNode positions = result.putObject("positions");
        try (DistributedLogManager log = namespace(request).openLog(stream(request))) {
            await(log.getSubscriptionsStore().getLastCommitPositions())
                    .forEach((name, where) -> put(positions.putArray(name), where));
        }
    }

    private static byte[] bytes(JsonNode base64) {
        return Base64.getDecoder().decode(base64.asText());
    }

    private static DLSN position(JsonNode numbers) {
        return new DLSN(
                numbers.get(0).asLong(), numbers.get(1).asLong(), numbers.get(2).asLong());
    }

    private static void put(ArrayNode numbers, DLSN position) {
        numbers.add(position.getLogSegmentSequenceNo()).add(position.getEntryId())
                .add(position.getSlotId());
    }
}
