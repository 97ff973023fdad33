import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.Reader;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Debezium's embedded engine with the properties in the file that the argument names. Prints each
 * event as a line of JSON, and ends at SIGTERM.
 */
public final class Follow {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = new FileReader(args[0])) {
            properties.load(reader);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties)
            .using((success, message, error) -> {
                System.err.println("the engine has ended: " + success + ", " + message);
                if (error != null) {
                    error.printStackTrace();
                }
            })
            .notifying(event -> {
                System.out.println(event.value());
                System.out.flush();
            })
            .build();
        ExecutorService executor = Executors.newSingleThreadExecutor();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
                executor.shutdown();
                executor.awaitTermination(30, TimeUnit.SECONDS);
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        executor.submit(engine).get();
        System.exit(1);
    }
}
