// Declares what the generated C# client names and Debian's packages for Mono do not have.
// JsonSubTypes: the client has a using directive for it, and uses no type of it.
namespace JsonSubTypes { }

// Naming strategies: Newtonsoft.Json has them since version 9, and Debian has version 6. A naming strategy
// names the members that state no JSON name. Every member that the generator writes states one, so the JSON is the same.
namespace Org.OpenAPITools
{
    class CamelCaseNamingStrategy { public bool OverrideSpecifiedNames; }
    class DefaultContractResolver : Newtonsoft.Json.Serialization.DefaultContractResolver { public CamelCaseNamingStrategy NamingStrategy; }
}
